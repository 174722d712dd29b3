package dev.posse.spark;

import java.io.IOException;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The words of spark-submit: options, then the application and its own arguments.
 *
 * @param options those with a value, in their order; a name may occur several times
 * @param flags those without a value
 * @param application the application and its arguments
 */
record Arguments(List<Option> options, Set<String> flags, List<String> application) {
  /** An option with its value. */
  record Option(String name, String value) {}

  static final String EXPLAIN = "--explain";
  static final String DEV = "--dev";

  /** All others have a value. */
  private static final Set<String> FLAGS = Set.of(
      EXPLAIN, DEV, "--help", "-h", "--load-spark-defaults", "--supervise", "--usage-error", "--verbose", "-v", "--version");
  /** Options that are keys. */
  private static final Map<String, String> KEYS = Map.of(
      "--deploy-mode", "spark.submit.deployMode", "--driver-cores", "spark.driver.cores",
      "--driver-memory", "spark.driver.memory", "--executor-cores", "spark.executor.cores",
      "--executor-memory", "spark.executor.memory", "--master", "spark.master", "--name", "spark.app.name",
      "--num-executors", "spark.executor.instances");
  private static final Pattern WITH_VALUE = Pattern.compile("(--[^=]+)=(.*)", Pattern.DOTALL);

  /** @throws IllegalArgumentException if an option has no value */
  static Arguments parse(List<String> words) {
    List<Option> options = new ArrayList<>();
    Set<String> flags = new TreeSet<>();
    int at = 0;
    for (; at < words.size() && words.get(at).startsWith("-"); at++) {
      String word = words.get(at);
      Matcher both = WITH_VALUE.matcher(word);
      if (both.matches()) {
        options.add(new Option(both.group(1), both.group(2)));
      } else if (FLAGS.contains(word)) {
        flags.add(word);
      } else if (at + 1 < words.size()) {
        at++;
        options.add(new Option(word, words.get(at)));
      } else {
        throw new IllegalArgumentException("the option " + word + " has no value");
      }
    }
    return new Arguments(options, flags, List.copyOf(words.subList(at, words.size())));
  }

  /** The last value of an option. */
  Optional<String> last(String name) {
    return options.stream().filter(option -> option.name().equals(name)).reduce((a, b) -> b).map(Option::value);
  }

  /**
   * All keys as spark-submit finds them: those of spark-defaults.conf, of the properties file, of the options.
   *
   * @param defaults spark-defaults.conf, which need not exist
   */
  Map<String, String> conf(Path defaults) {
    Map<String, String> conf = new TreeMap<>();
    Optional<String> file = last("--properties-file");
    if (Files.isReadable(defaults) && (file.isEmpty() || flags.contains("--load-spark-defaults"))) {
      conf.putAll(read(defaults));
    }
    file.ifPresent(path -> conf.putAll(read(Path.of(path))));
    for (Option option : options) {
      String key = KEYS.get(option.name());
      if (key != null) {
        conf.put(key, option.value());
      } else if (option.name().equals("--conf") || option.name().equals("-c")) {
        String[] pair = option.value().split("=", 2);
        if (pair.length < 2) {
          throw new IllegalArgumentException("--conf " + option.value() + " is no KEY=VALUE");
        }
        conf.put(pair[0], pair[1]);
      }
    }
    return conf;
  }

  private static Map<String, String> read(Path file) {
    Properties properties = new Properties();
    try (Reader reader = Files.newBufferedReader(file, StandardCharsets.UTF_8)) {
      properties.load(reader);
    } catch (IOException | IllegalArgumentException e) {
      throw new IllegalArgumentException("cannot read " + file + ": " + e, e);
    }
    Map<String, String> keys = new TreeMap<>();
    for (String name : properties.stringPropertyNames()) {
      if (name.startsWith("spark.")) {
        keys.put(name, properties.getProperty(name).strip());
      }
    }
    return keys;
  }

  /** The options as words again, without those of posse-spark-submit itself. */
  List<String> words() {
    List<String> words = new ArrayList<>();
    for (String flag : flags) {
      if (!flag.equals(EXPLAIN) && !flag.equals(DEV)) {
        words.add(flag);
      }
    }
    for (Option option : options) {
      words.add(option.name());
      words.add(option.value());
    }
    return words;
  }
}
