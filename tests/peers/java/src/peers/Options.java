package peers;

import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/** The key=value words of one command line; keys are plain, values are URL-encoded. */
final class Options {
    private final Map<String, String> values = new LinkedHashMap<>();

    Options(String[] words, int from) {
        for (int i = from; i < words.length; i++) {
            int cut = words[i].indexOf('=');
            values.put(words[i].substring(0, cut),
                URLDecoder.decode(words[i].substring(cut + 1), StandardCharsets.UTF_8));
        }
    }

    String need(String key) {
        String value = values.get(key);
        if (value == null) {
            throw new IllegalArgumentException("the command needs " + key + "=, it got " + values);
        }
        return value;
    }

    String get(String key, String otherwise) {
        return values.getOrDefault(key, otherwise);
    }

    int number(String key, int otherwise) {
        return Integer.parseInt(get(key, String.valueOf(otherwise)));
    }

    long big(String key, long otherwise) {
        return Long.parseLong(get(key, String.valueOf(otherwise)));
    }

    boolean is(String key) {
        return Boolean.parseBoolean(get(key, "false"));
    }

    boolean has(String key) {
        return values.containsKey(key);
    }

    /** All keys that start with the prefix, without it. */
    Map<String, String> under(String prefix) {
        Map<String, String> found = new LinkedHashMap<>();
        values.forEach((key, value) -> {
            if (key.startsWith(prefix)) {
                found.put(key.substring(prefix.length()), value);
            }
        });
        return found;
    }
}
