package peers;

import java.util.Map;

/** Writes maps, lists, texts, numbers, booleans and null as one line of JSON: all that an event needs. */
final class Json {
    private Json() {
    }

    static String of(Object value) {
        StringBuilder out = new StringBuilder();
        write(out, value);
        return out.toString();
    }

    private static void write(StringBuilder out, Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof Map) {
            String comma = "{";
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                out.append(comma);
                text(out, String.valueOf(entry.getKey()));
                out.append(':');
                write(out, entry.getValue());
                comma = ",";
            }
            out.append(comma.equals("{") ? "{}" : "}");
        } else if (value instanceof Iterable) {
            String comma = "[";
            for (Object item : (Iterable<?>) value) {
                out.append(comma);
                write(out, item);
                comma = ",";
            }
            out.append(comma.equals("[") ? "[]" : "]");
        } else {
            text(out, value.toString());
        }
    }

    private static void text(StringBuilder out, String text) {
        out.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < 0x20 || c > 0x7e) {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }
}
