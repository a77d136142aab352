#!/usr/bin/env bash
# MinIO, Versity S3 Gateway and S3Proxy ignore `If-None-Match: *` of CopyObject: they overwrite what is there and
# answer 200, while a PutObject and the end of an upload in parts with that condition are refused.
#
# MinIO of 2026-02-12 and Versity S3 Gateway 1.8.0 (both made by `go install`, MinIO in about a quarter of an hour on
# two cores), S3Proxy 4.1.0 from Maven; boto3 1.44.8; Go 1.26, Java 17, Linux or macOS.
#
# The parameter IfNoneMatch of copy_object is one of the service, so no client warns.  Programs that create a large
# object under a passing name and copy it in place, or that copy where nothing should be, lose what another one wrote.
# MinIO also says parts of a second of LastModified in lists, and whole seconds in HEAD: a comparison of both finds the
# object newer in the list.
#
# Output seen:
#   minio      copy: overwrote   put: 412   end of parts: 412   list and head say one time: no
#   versitygw  copy: overwrote   put: 412   end of parts: 412   list and head say one time: yes
#   s3proxy    copy: overwrote   put: 412   end of parts: 412   list and head say one time: yes
#   as described
set -euo pipefail
folder=$(mktemp -d)
servers=()
trap 'for one in "${servers[@]}"; do kill "$one" 2>/dev/null || true; done; chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check boto3==1.44.8
GOBIN="$folder/bin" go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
GOBIN="$folder/bin" go install github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c
curl --silent --show-error --fail --output "$folder/s3proxy.jar" \
    https://repo1.maven.org/maven2/org/gaul/s3proxy/4.1.0/s3proxy-4.1.0-jar-with-dependencies.jar
read -r minio versity proxy < <(python3 - <<'PY'
import socket

places = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(place.getsockname()[1] for place in places))
PY
)
mkdir -p "$folder"/{minio,versity,proxy}/lake
MINIO_ROOT_USER=some-key MINIO_ROOT_PASSWORD=some-secret \
    "$folder/bin/minio" server --quiet --address "127.0.0.1:$minio" "$folder/minio" >"$folder/minio.log" 2>&1 &
servers+=($!)
"$folder/bin/versitygw" -q -p "127.0.0.1:$versity" -a some-key -s some-secret posix "$folder/versity" >"$folder/versity.log" 2>&1 &
servers+=($!)
cat >"$folder/s3proxy.conf" <<CONF
s3proxy.authorization=aws-v2-or-v4
s3proxy.endpoint=http://127.0.0.1:$proxy
s3proxy.identity=some-key
s3proxy.credential=some-secret
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir=$folder/proxy
CONF
java -jar "$folder/s3proxy.jar" --properties "$folder/s3proxy.conf" >"$folder/proxy.log" 2>&1 &
servers+=($!)
cat >"$folder/look.py" <<'PY'
import sys
import time

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

NONE_THERE = {"IfNoneMatch": "*"}


def status(request) -> str:
    try:
        return str(request()["ResponseMetadata"]["HTTPStatusCode"])
    except ClientError as error:
        return str(error.response["ResponseMetadata"]["HTTPStatusCode"])


def look(port: str) -> tuple[str, str, str, str]:
    s3 = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="some-key",
        aws_secret_access_key="some-secret",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
    )
    deadline = time.monotonic() + 60
    while True:
        try:
            s3.put_object(Bucket="lake", Key="from", Body=b"new")
            break
        except (BotoCoreError, ClientError):
            assert time.monotonic() < deadline
    source = {"Bucket": "lake", "Key": "from"}
    s3.put_object(Bucket="lake", Key="copied", Body=b"old")
    s3.put_object(Bucket="lake", Key="there", Body=b"old")
    copied = status(lambda: s3.copy_object(Bucket="lake", Key="copied", CopySource=source, **NONE_THERE))
    if s3.get_object(Bucket="lake", Key="copied")["Body"].read() == b"new":
        copied = "overwrote"
    put = status(lambda: s3.put_object(Bucket="lake", Key="there", Body=b"new", **NONE_THERE))
    upload = {"Bucket": "lake", "Key": "there"}
    upload["UploadId"] = s3.create_multipart_upload(**upload)["UploadId"]
    part = s3.upload_part_copy(**upload, PartNumber=1, CopySource=source)["CopyPartResult"]["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
    ended = status(lambda: s3.complete_multipart_upload(**upload, MultipartUpload=parts, **NONE_THERE))
    assert s3.get_object(Bucket="lake", Key="there")["Body"].read() == b"old"
    listed = {one["Key"]: one["LastModified"] for one in s3.list_objects_v2(Bucket="lake")["Contents"]}
    heads = {key: s3.head_object(Bucket="lake", Key=key)["LastModified"] for key in listed}
    return copied, put, ended, "yes" if listed == heads else "no"


same = True
for name, port in zip(("minio", "versitygw", "s3proxy"), sys.argv[1:], strict=True):
    copied, put, ended, one_time = found = look(port)
    print(f"{name:<10} copy: {copied}   put: {put}   end of parts: {ended}   list and head say one time: {one_time}")
    same = same and found == ("overwrote", "412", "412", "no" if name == "minio" else "yes")
print("as described" if same else "no longer as described")
sys.exit(0 if same else 1)
PY
"$folder/venv/bin/python" "$folder/look.py" "$minio" "$versity" "$proxy"
