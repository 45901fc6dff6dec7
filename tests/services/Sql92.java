import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.filter.expression.BooleanExpression;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.parser.SelectorParser;

/** Says for each line (expression, tab, property string) whether Apache's filter matches, refuses or not. */
public class Sql92 {
    record Properties(Map<String, String> values) implements EvaluationContext {
        public Object get(String name) {
            return values.get(name);
        }

        public Map<String, Object> keyValues() {
            return null;
        }
    }

    public static void main(String[] args) throws Exception {
        List<String> verdicts = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            String[] parts = line.split("\t", -1);
            verdicts.add(verdict(parts[0], parts[1]));
        }
        Files.write(Path.of(args[1]), verdicts);
    }

    static String verdict(String expression, String properties) {
        Map<String, String> values = new HashMap<>();
        for (String pair : properties.split("\u0002")) {
            String[] parts = pair.split("\u0001", -1);
            if (parts.length == 2) {
                values.put(parts[0], parts[1]);
            }
        }
        BooleanExpression parsed;
        try {
            parsed = SelectorParser.parse(expression);
        } catch (Throwable refused) {
            return "refused";
        }
        try {
            return parsed.evaluate(new Properties(values)) == Boolean.TRUE ? "matched" : "not";
        } catch (Throwable failed) {
            return "not";
        }
    }
}
