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

import org.apache.spark.launcher.SparkSubmitArgumentsParser;

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

  /** The options that only posse-spark-submit has. */
  private static final Set<String> OWN = Set.of(EXPLAIN, DEV);
  /** Options that are keys. */
  private static final Map<String, String> KEYS = Map.of(
      "--deploy-mode", "spark.submit.deployMode", "--driver-cores", "spark.driver.cores",
      "--driver-memory", "spark.driver.memory", "--executor-cores", "spark.executor.cores",
      "--executor-memory", "spark.executor.memory", "--master", "spark.master", "--name", "spark.app.name",
      "--num-executors", "spark.executor.instances", "--queue", "spark.yarn.queue");
  /** The options of the Spark that is there, by its own parser. It gives each option its long name. */
  private static final class Parser extends SparkSubmitArgumentsParser {
    private final List<Option> options = new ArrayList<>();
    private final Set<String> flags = new TreeSet<>();
    private final List<String> application = new ArrayList<>();

    private Arguments read(List<String> words) {
      parse(words);
      return new Arguments(options, flags, List.copyOf(application));
    }

    @Override
    protected boolean handle(String option, String value) {
      if (value == null) {
        flags.add(option);
      } else {
        options.add(new Option(option, value));
      }
      return true;
    }

    /** False ends the options. */
    @Override
    protected boolean handleUnknown(String word) {
      if (OWN.contains(word)) {
        flags.add(word);
        return true;
      }
      if (word.startsWith("-")) {
        throw new IllegalArgumentException("unrecognized option " + word + ": `posse-spark-submit --help` lists them all");
      }
      application.add(word);
      return false;
    }

    @Override
    protected void handleExtraArgs(List<String> words) {
      application.addAll(words);
    }
  }

  /** @throws IllegalArgumentException if there is no such option, or one has no value */
  static Arguments parse(List<String> words) {
    return new Parser().read(words);
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
      } else if (option.name().equals("--conf")) {
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

  /** The flags of spark-submit, without those of posse-spark-submit itself. */
  List<String> flagsOfSpark() {
    return flags.stream().filter(flag -> !OWN.contains(flag)).toList();
  }

  /** The options as words again, without those of posse-spark-submit itself. */
  List<String> words() {
    List<String> words = new ArrayList<>(flagsOfSpark());
    for (Option option : options) {
      words.add(option.name());
      words.add(option.value());
    }
    return words;
  }
}
