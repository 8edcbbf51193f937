import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.api.RecordMetadata;

/**
 * Kafka Streams as one writes it by hand for a catalog of the load, without a router.
 *
 * <p>Definitions are found by type, or by the header "kind" where records are no CloudEvents; templates are regular
 * expressions. Events go to a topic for each message group with headers of lineage, the rest to one for dead letters.
 * Arguments: bootstrap servers, catalog, topic, prefix of the topics for events, topic of dead letters, a folder.
 */
public final class StreamsByHand {
    private static final String ENDPOINT = "/endpoints/plant";
    private static final String EPOCH = "0123456789abcdef";
    private static final ObjectMapper JSON = new ObjectMapper();

    /** A URI template of a property. */
    record Template(String property, Pattern pattern, List<String> names) {
        private static final Pattern PLACEHOLDER = Pattern.compile("\\{(\\w+)\\}");

        static Template of(String property, String text) {
            List<String> names = PLACEHOLDER.matcher(text).results().map(each -> each.group(1)).toList();
            String groups = PLACEHOLDER.matcher(text).replaceAll("\\\\E([^/]+?)\\\\Q");
            return new Template(property, Pattern.compile("\\Q" + groups + "\\E"), names);
        }

        /** Adds the values of the placeholders; false if the text does not match, or a value differs from another's. */
        boolean read(String text, Map<String, String> context) {
            Matcher matcher = pattern.matcher(text == null ? "" : text);
            if (!matcher.matches()) {
                return false;
            }
            for (int at = 0; at < names.size(); at++) {
                String before = context.put(names.get(at), matcher.group(at + 1));
                if (before != null && !before.equals(matcher.group(at + 1))) {
                    return false;
                }
            }
            return true;
        }
    }

    /** A definition of the catalog. */
    record Definition(String xid, String group, String type, List<Template> templates) {}

    /** A record that is no valid CloudEvent. */
    static final class Invalid extends Exception {}

    private final Map<String, Definition> events = new HashMap<>();
    private final Map<String, Definition> natives = new HashMap<>();
    private final Set<String> groups = new TreeSet<>();

    private StreamsByHand(JsonNode catalog) {
        catalog.get("messagegroups").properties().forEach(group ->
            group.getValue().get("messages").properties().forEach(each ->
                add(group.getKey(), each.getKey(), each.getValue())));
    }

    private void add(String group, String id, JsonNode told) {
        groups.add(group);
        String xid = "/messagegroups/" + group + "/messages/" + id;
        String type = told.at("/envelopemetadata/type/value").asText();
        List<Template> templates = new ArrayList<>();
        if (told.has("protocoloptions")) {
            templates.add(Template.of("key", told.at("/protocoloptions/key/value").asText()));
            String kind = told.at("/protocoloptions/headers/0/value").asText();
            natives.put(kind, new Definition(xid, group, type, templates));
            return;
        }
        told.get("envelopemetadata").properties().forEach(each -> {
            if (!each.getKey().equals("type")) {
                templates.add(Template.of(each.getKey(), each.getValue().get("value").asText()));
            }
        });
        events.put(type, new Definition(xid, group, type, templates));
    }

    private Topology topology(String topic, String out, String dead) {
        Topology topology = new Topology();
        topology.addSource("in", new ByteArrayDeserializer(), new ByteArrayDeserializer(), topic);
        topology.addProcessor("router", Router::new, "in");
        groups.forEach(group ->
            topology.addSink(group, out + group, new ByteArraySerializer(), new ByteArraySerializer(), "router"));
        topology.addSink("dead", dead, new ByteArraySerializer(), new ByteArraySerializer(), "router");
        return topology;
    }

    /** Sends each record to the sink of its message group, or as a dead letter. */
    final class Router implements Processor<byte[], byte[], byte[], byte[]> {
        private ProcessorContext<byte[], byte[]> processing;

        @Override
        public void init(ProcessorContext<byte[], byte[]> context) {
            processing = context;
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            Headers headers = record.headers();
            RecordMetadata from = processing.recordMetadata().orElseThrow();
            String position = from.topic() + "-" + from.partition() + "-" + from.offset();
            Map<String, String> context = new LinkedHashMap<>();
            String reason = "no-match";
            Definition definition = null;
            try {
                definition = match(record, context);
            } catch (Invalid invalid) {
                reason = "invalid-cloudevent";
            }
            if (definition == null) {
                add(headers, "xrouter-letter", sha256(position).substring(0, 32));
                add(headers, "xrouter-reason", reason);
                add(headers, "xrouter-received", Instant.ofEpochMilli(record.timestamp()).toString());
                add(headers, "xrouter-failed", Instant.now().toString());
            } else {
                if (text(headers, "ce_specversion") == null) {
                    describe(record, definition, String.join("/", context.values()), position);
                }
                add(headers, "xrouter-message", definition.xid());
                add(headers, "xrouter-context", json(context));
                add(headers, "xrouter-endpoint", ENDPOINT);
            }
            add(headers, "xrouter-epoch", EPOCH);
            add(headers, "xrouter-position", position);
            processing.forward(record, definition == null ? "dead" : definition.group());
        }

        private Definition match(Record<byte[], byte[]> record, Map<String, String> context) throws Invalid {
            Headers headers = record.headers();
            Definition definition = natives.get(text(headers, "kind"));
            boolean event = headers.lastHeader("ce_specversion") != null;
            if (event) {
                definition = events.get(required(headers, "ce_type"));
                required(headers, "ce_id");
                required(headers, "ce_source");
            } else if (String.valueOf(text(headers, "content-type")).startsWith("application/cloudevents")) {
                throw new Invalid();  // Structured mode is another program.
            }
            if (definition == null) {
                return null;
            }
            for (Template each : definition.templates()) {
                String text = event ? text(headers, "ce_" + each.property()) : decoded(record.key());
                if (!each.read(text, context)) {
                    return null;
                }
            }
            return definition;
        }

        /** Makes a record that is no CloudEvent one. */
        private void describe(Record<byte[], byte[]> record, Definition definition, String subject, String position) {
            Headers headers = record.headers();
            add(headers, "ce_specversion", "1.0");
            add(headers, "ce_id", position);
            add(headers, "ce_type", definition.type());
            add(headers, "ce_source", ENDPOINT);
            add(headers, "ce_subject", subject);
            add(headers, "ce_partitionkey", subject);
            add(headers, "ce_time", Instant.ofEpochMilli(record.timestamp()).toString());
        }
    }

    private static String required(Headers headers, String name) throws Invalid {
        String text = text(headers, name);
        if (text == null || text.isEmpty()) {
            throw new Invalid();
        }
        return text;
    }

    private static String text(Headers headers, String name) {
        Header header = headers.lastHeader(name);
        return header == null ? null : decoded(header.value());
    }

    /** Returns the text of bytes; null if they are none. */
    private static String decoded(byte[] bytes) {
        try {
            return bytes == null ? null : StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString();
        } catch (CharacterCodingException malformed) {
            return null;
        }
    }

    private static void add(Headers headers, String name, String value) {
        headers.add(name, value.getBytes(StandardCharsets.UTF_8));
    }

    private static String json(Map<String, String> context) {
        try {
            return JSON.writeValueAsString(context);
        } catch (IOException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private static String sha256(String text) {
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(text.getBytes(StandardCharsets.UTF_8));
            return HexFormat.of().formatHex(digest);
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    public static void main(String[] arguments) throws IOException {
        StreamsByHand program = new StreamsByHand(JSON.readTree(new File(arguments[1])));
        Properties told = new Properties();
        told.put(StreamsConfig.APPLICATION_ID_CONFIG, "streams-by-hand");
        told.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        told.put(StreamsConfig.STATE_DIR_CONFIG, arguments[5]);
        told.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, Runtime.getRuntime().availableProcessors());
        KafkaStreams streams = new KafkaStreams(program.topology(arguments[2], arguments[3], arguments[4]), told);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
