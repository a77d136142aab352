package sparktxlog;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.local.LocalConfigKeys;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local files, without a process for each file.
 *
 * <p>Without its native library Hadoop starts `chmod` for each file and directory that it makes, and
 * `readlink` twice for each that it renames: hundreds of processes in a test of a minute. Java can
 * do both itself.
 */
public final class LocalFiles {
  private LocalFiles() {}

  /** For `fs.file.impl`. */
  public static final class Quick extends LocalFileSystem {
    public Quick() {
      super(new Raw());
    }
  }

  /** For `fs.AbstractFileSystem.file.impl`. */
  public static final class QuickContext extends ChecksumFs {
    public QuickContext(URI unused, Configuration conf) throws IOException, URISyntaxException {
      super(new RawContext(conf));
    }
  }

  private static final class Raw extends RawLocalFileSystem {
    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
      if (permission.getStickyBit()) {
        super.setPermission(path, permission);
        return;
      }
      String letters =
          permission.getUserAction().SYMBOL
              + permission.getGroupAction().SYMBOL
              + permission.getOtherAction().SYMBOL;
      Files.setPosixFilePermissions(
          pathToFile(path).toPath(), PosixFilePermissions.fromString(letters));
    }

    @Override
    public FileStatus getFileLinkStatus(Path path) throws IOException {
      boolean link = Files.isSymbolicLink(pathToFile(path).toPath());
      return link ? super.getFileLinkStatus(path) : getFileStatus(path);
    }
  }

  private static final class RawContext extends DelegateToFileSystem {
    RawContext(Configuration conf) throws IOException, URISyntaxException {
      super(FsConstants.LOCAL_FS_URI, new Raw(), conf, FsConstants.LOCAL_FS_URI.getScheme(), false);
    }

    @Override
    public int getUriDefaultPort() {
      return -1;
    }

    @Override
    public FsServerDefaults getServerDefaults(Path path) throws IOException {
      return LocalConfigKeys.getServerDefaults();
    }

    @Override
    public boolean isValidName(String name) {
      return true;
    }
  }
}
