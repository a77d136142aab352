import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * The client of the peer Kafka: reads a command a line, answers each with one line of numbers, seconds.
 *
 * <p>It stays between measurements, as servers do, so that its code is compiled by then. Each record has a
 * value of its own: 16 bytes that count, the rest by chance.
 */
public final class KafkaLoad {
    private static final int RECORD_BYTES = 200;

    private final String servers;
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    private final AtomicLong numbers = new AtomicLong();
    private final AtomicReference<Exception> failure = new AtomicReference<>();
    private final byte[] chance = new byte[1 << 20];

    private KafkaLoad(String servers) {
        this.servers = servers;
        new Random(7).nextBytes(chance);
    }

    public static void main(String[] arguments) throws Exception {
        KafkaLoad load = new KafkaLoad(arguments[0]);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            System.out.println(load.answer(line.trim().split(" ")));
            System.out.flush();
        }
        load.producers.values().forEach(KafkaProducer::close);
    }

    private String answer(String[] command) throws Exception {
        String topic = command[1];
        int[] n = new int[command.length];
        for (int i = 2; i < command.length; i++) {
            n[i] = Integer.parseInt(command[i]);
        }
        switch (command[0]) {
            case "create":
                return create(topic, n[2], n[3], n[4] == 1);
            case "leader":
                return leader(topic);
            case "batches":
                return batches(topic, n[2], n[3], n[4]);
            case "singles":
                return singles(topic, n[2], n[3]);
            case "lone":
                return lone(topic, n[2], n[3]);
            default:
                throw new IllegalArgumentException(command[0]);
        }
    }

    private Admin admin() {
        return Admin.create(Collections.singletonMap("bootstrap.servers", (Object) servers));
    }

    /** Creates a topic; with {@code synced}, each set of records is synced to the disk before it is acknowledged. */
    private String create(String topic, int partitions, int replicas, boolean synced) throws Exception {
        Map<String, String> settings = new HashMap<>();
        settings.put("min.insync.replicas", String.valueOf(replicas / 2 + 1));
        settings.put("max.message.bytes", String.valueOf(16 << 20));
        if (synced) {
            settings.put("flush.messages", "1");
        }
        NewTopic made = new NewTopic(topic, partitions, (short) replicas).configs(settings);
        try (Admin admin = admin()) {
            admin.createTopics(Collections.singleton(made)).all().get();
        }
        return "0";
    }

    /** Returns the broker that leads the topic's first partition. */
    private String leader(String topic) throws Exception {
        try (Admin admin = admin()) {
            Map<String, TopicDescription> found =
                    admin.describeTopics(Collections.singleton(topic)).allTopicNames().get();
            return String.valueOf(found.get(topic).partitions().get(0).leader().id());
        }
    }

    private KafkaProducer<byte[], byte[]> producer(String name, int batch, long lingerMs) {
        return producers.computeIfAbsent(name + " " + batch + " " + lingerMs, key -> {
            Properties settings = new Properties();
            settings.put("bootstrap.servers", servers);
            settings.put("acks", "all");
            settings.put("linger.ms", lingerMs);
            settings.put("batch.size", Math.max(16_384, batch * (RECORD_BYTES + 64)));
            settings.put("max.request.size", 16 << 20);
            settings.put("buffer.memory", 64L << 20);
            String bytes = "org.apache.kafka.common.serialization.ByteArraySerializer";
            settings.put("key.serializer", bytes);
            settings.put("value.serializer", bytes);
            return new KafkaProducer<>(settings);
        });
    }

    private ProducerRecord<byte[], byte[]> record(String topic) {
        long number = numbers.getAndIncrement();
        byte[] value = new byte[RECORD_BYTES];
        int from = (int) (number * 61 % (chance.length - RECORD_BYTES));
        System.arraycopy(chance, from, value, 0, RECORD_BYTES);
        ByteBuffer.wrap(value).putLong(number).putLong(~number);
        return new ProducerRecord<>(topic, value);
    }

    private void noted(Exception error) {
        if (error != null) {
            failure.compareAndSet(null, error);
        }
    }

    private String seconds(long begin) throws Exception {
        double spent = (System.nanoTime() - begin) / 1e9;
        if (failure.get() != null) {
            throw failure.get();
        }
        return String.valueOf(spent);
    }

    /** Sends batches by some producers at once; each waits for its batch before it sends the next. */
    private String batches(String topic, int senders, int batch, int total) throws Exception {
        long begin = System.nanoTime();
        Thread[] threads = new Thread[senders];
        AtomicLong left = new AtomicLong(total);
        for (int i = 0; i < senders; i++) {
            KafkaProducer<byte[], byte[]> producer = producer("batches-" + i, batch, 1_000);
            threads[i] = new Thread(() -> {
                while (left.addAndGet(-batch) >= 0) {
                    for (int sent = 0; sent < batch; sent++) {
                        producer.send(record(topic), (metadata, error) -> noted(error));
                    }
                    producer.flush();
                }
            });
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return seconds(begin);
    }

    /** Sends records with at most {@code open} on their way, in Kafka's own default batches. */
    private String singles(String topic, int open, int total) throws Exception {
        KafkaProducer<byte[], byte[]> producer = producer("singles", 1, 0);
        Semaphore permits = new Semaphore(open);
        CountDownLatch done = new CountDownLatch(total);
        long begin = System.nanoTime();
        for (int sent = 0; sent < total; sent++) {
            permits.acquire();
            producer.send(record(topic), (metadata, error) -> {
                noted(error);
                permits.release();
                done.countDown();
            });
        }
        done.await();
        return seconds(begin);
    }

    /** Sends one record after the other, each {@code pauseMs} after the one before; returns what each took. */
    private String lone(String topic, int total, int pauseMs) throws Exception {
        KafkaProducer<byte[], byte[]> producer = producer("singles", 1, 0);
        StringBuilder found = new StringBuilder();
        for (int sent = 0; sent < total; sent++) {
            long begin = System.nanoTime();
            producer.send(record(topic)).get();
            found.append(sent == 0 ? "" : " ").append(seconds(begin));
            Thread.sleep(pauseMs);
        }
        return found.toString();
    }
}
