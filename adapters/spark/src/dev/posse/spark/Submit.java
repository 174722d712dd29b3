package dev.posse.spark;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Predicate;
import java.util.regex.Pattern;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.KubernetesClientException;

import org.apache.spark.SparkConf;
import org.apache.spark.deploy.k8s.KubernetesUtils;

import scala.Option;

/**
 * Decides for posse-spark-submit what it calls: spark-submit within a run of posse, else `posse run` or, in cluster mode,
 * `posse submit`, with a configuration that is made of Spark's keys.
 *
 * <p>Prints the call as words of a shell, because a JVM cannot become another program.
 */
public final class Submit {
  private static final String CONTEXT = "spark.kubernetes.context";
  private static final String ALLOCATOR = "spark.kubernetes.allocation.pods.allocator";
  /** The API server in each pod, beside its address. */
  private static final String POD_SERVER = "(https://)?kubernetes\\.default\\.svc(\\.[^:/]+)?(:443)?/?";
  private static final int APP_CHARS_MAX = 40;
  /** The default of spark.redaction.regex in Spark 4.3; before it is a part of this. To ask Spark would start its logging. */
  static final String SECRET = "(?i)secret|password|token|access[.]?key|credential";
  /** What ends the configuration in the shell's text. It has no lines of its own, so this cannot occur in it. */
  private static final String END = "POSSE_YAML";

  /**
   * The files and programs around the jar.
   *
   * @param script posse-spark-submit itself
   * @param parts the folder with executor.sh and executor.yaml
   */
  record Place(String sparkHome, String posse, String script, String jar, String parts) {}

  /** What to call, and what to say before that. `configuration` is the call's file 3. */
  record Call(List<String> words, Optional<ObjectNode> configuration, List<String> told) {}

  private final Map<String, String> env;
  private final Place place;
  private final Arguments arguments;
  private final Map<String, String> conf;

  Submit(Map<String, String> env, Place place, List<String> words) {
    this.env = env;
    this.place = place;
    arguments = Arguments.parse(words);
    String folder = env.getOrDefault("SPARK_CONF_DIR", place.sparkHome() + "/conf");
    conf = arguments.conf(Path.of(folder, "spark-defaults.conf"));
  }

  /** Prints the call; the exit code is 2 if there is none. */
  public static void main(String[] words) {
    // A shell runs what is printed here. Others print elsewhere: an upload may log.
    PrintStream out = System.out;
    System.setOut(System.err);
    Place place = new Place(property("home"), property("posse"), property("script"), property("jar"), property("parts"));
    try {
      Submit submit = new Submit(System.getenv(), place, List.of(words));
      if (submit.arguments.flags().contains(Arguments.EXPLAIN)) {
        out.print("printf %s " + quoted(submit.explain()) + "\n");
        out.flush();
        return;
      }
      Call call = submit.call();
      call.told().forEach(line -> System.err.println("posse-spark-submit: " + line));
      out.print(shell(call));
      out.flush();
    } catch (IllegalArgumentException e) {
      System.err.println("posse-spark-submit: " + e.getMessage());
      System.exit(2);
    }
  }

  private static String property(String name) {
    return System.getProperty("posse." + name, "");
  }

  /** The call as text of a shell. */
  static String shell(Call call) {
    StringBuilder text = new StringBuilder();
    // A file without a name, which can be read more than once.
    call.configuration().ifPresent(json -> text.append("file=$(mktemp)\nexec 3<\"$file\"\ncat > \"$file\" <<'").append(END)
        .append("'\n").append(json).append('\n').append(END).append("\nrm \"$file\"\n"));
    text.append("exec");
    call.words().forEach(word -> text.append(' ').append(quoted(word)));
    return text.append('\n').toString();
  }

  static String quoted(String word) {
    return "'" + word.replace("'", "'\\''") + "'";
  }

  Call call() {
    Set<String> flags = arguments.flags();
    // Spark alone answers these.
    if (flags.contains("--version") || flags.contains("--help") || arguments.last("--status").isPresent()
        || arguments.last("--kill").isPresent()) {
      List<String> words = new ArrayList<>(List.of(spark()));
      words.addAll(arguments.words());
      return new Call(words, Optional.empty(), List.of());
    }
    String master = conf.getOrDefault("spark.master", "k8s://");
    if (!master.startsWith("k8s://")) {
      throw new IllegalArgumentException("--master is " + master + ", where posse has no executors: leave it out, or name the"
          + " API server as k8s://URL; --explain says what becomes of each key");
    }
    boolean isCluster = conf.getOrDefault("spark.submit.deployMode", "client").equals("cluster");
    boolean isDev = flags.contains(Arguments.DEV);
    if (isInside()) {
      if (isCluster || isDev) {
        throw new IllegalArgumentException("this is a driver that posse has started, so " + (isDev ? "--dev" : "cluster mode")
            + " is too late: call posse-spark-submit without posse run");
      }
      return inside();
    }
    if (isCluster && isDev) {
      throw new IllegalArgumentException("--dev runs the driver on this machine: leave out --deploy-mode cluster");
    }
    return isCluster ? cluster() : outside(isDev);
  }

  private boolean isInside() {
    return !env.getOrDefault("POSSE_CONTROL", "").isEmpty() || conf.containsKey("spark.posse.control");
  }

  private String spark() {
    return place.sparkHome() + "/bin/spark-submit";
  }

  /** The driver of a run: spark-submit, with the adapter. */
  private Call inside() {
    checkEventLog();
    List<String> words = new ArrayList<>(List.of(spark()));
    JsonNode posse = posse();
    String server = posse.path("server").asText();
    String context = conf.getOrDefault(CONTEXT, posse.path("context").asText());
    checkCredentials(server, context);
    if (!context.isEmpty()) {
      set(words, CONTEXT, context);
    }
    setFromEnv(words, "spark.kubernetes.namespace", "POSSE_NAMESPACE");
    if (!env.getOrDefault("POD_NAME", "").isEmpty()) {
      // In the driver's pod, which owns the executors. Spark creates nothing but pods here, so the account needs the
      // permissions of posse only.
      setFromEnv(words, "spark.kubernetes.driver.pod.name", "POD_NAME");
      set(words, "spark.kubernetes.executor.disableConfigMap", "true");
      set(words, "spark.kubernetes.driver.ownPersistentVolumeClaim", "false");
      set(words, "spark.kubernetes.driver.service.deleteOnTermination", "false");
    }
    String address = env.getOrDefault("POD_IP", "");
    if (!address.isEmpty()) {
      set(words, "spark.driver.host", bracketed(address));
    }
    words.addAll(arguments.words());
    // The last value wins. The key is the same for a driver in cluster mode.
    words.addAll(List.of("--master", "k8s://" + server));
    set(words, "spark.kubernetes.driver.master", server);
    List<String> told = new ArrayList<>();
    // Somebody who names another allocator compares it with posse.
    if (conf.getOrDefault(ALLOCATOR, PosseAllocator.class.getName()).equals(PosseAllocator.class.getName())) {
      Set<String> keys = new TreeSet<>(List.of(conf.getOrDefault(Keys.TOLD, "").split(",")));
      Keys.withoutEffect(conf, keys).ifPresent(told::add);
      set(words, ALLOCATOR, PosseAllocator.class.getName());
      for (Keys.Key key : Keys.ALL) {
        if (!key.forced().isEmpty()) {
          set(words, key.name(), key.forced());
        }
      }
      keys.remove("");
      set(words, Keys.TOLD, String.join(",", keys));
    }
    words.addAll(arguments.application());
    return new Call(words, Optional.empty(), told);
  }

  /** A run of posse on this machine, whose driver is this program again. */
  private Call outside(boolean isDev) {
    if (arguments.application().isEmpty()) {
      throw new IllegalArgumentException("there is no application: name its jar or its .py file");
    }
    ObjectNode configuration = Control.JSON.createObjectNode();
    Set<String> keys = mapped(configuration);
    List<String> words = new ArrayList<>(List.of(place.posse(), "run"));
    if (isDev) {
      words.add("--dev");
    }
    named(words, "--context", CONTEXT);
    words.addAll(List.of("-f", "/dev/fd/3", "--", place.script()));
    if (isDev) {
      // There are no images: the entry point of Spark's image is a script of this machine.
      set(words, "spark.driver.host", "127.0.0.1");
      set(words, "spark.driver.bindAddress", "127.0.0.1");
      set(words, "spark.kubernetes.container.image", "none");
      set(words, "spark.kubernetes.executor.podTemplateFile", place.parts() + "/executor.yaml");
      set(words, "spark.kubernetes.executor.podTemplateContainerName", "spark");
      set(words, "spark.kubernetes.executor.request.cores", "100m");
      set(words, "spark.executorEnv.POSSE_SPARK_EXECUTOR", place.parts() + "/executor.sh");
      set(words, "spark.executorEnv.SPARK_HOME", place.sparkHome());
      set(words, "spark.executorEnv.PATH", env.getOrDefault("PATH", ""));
    }
    words.addAll(arguments.words());
    set(words, Keys.TOLD, String.join(",", keys));
    words.addAll(arguments.application());
    return new Call(words, Optional.of(configuration), List.of());
  }

  /** A driver in the cluster. */
  private Call cluster() {
    ObjectNode configuration = Control.JSON.createObjectNode();
    Set<String> keys = mapped(configuration);
    ClusterMode driver = new ClusterMode(place, arguments, conf, this::upload);
    driver.describe(configuration, keys);
    List<String> words = new ArrayList<>(List.of(place.posse(), "submit"));
    named(words, "--context", CONTEXT);
    words.addAll(List.of("-f", "/dev/fd/3"));
    words.addAll(driver.options());
    List<String> told = new ArrayList<>(driver.told().stream().toList());
    if (!env.getOrDefault("HADOOP_CONF_DIR", "").isEmpty()) {
      told.add("HADOOP_CONF_DIR does not come along: " + ClusterMode.HADOOP);
    }
    return new Call(words, Optional.of(configuration), told);
  }

  private SparkConf sparkConf() {
    SparkConf spark = new SparkConf(false);
    conf.forEach(spark::set);
    return spark;
  }

  /** Copies a file of this machine to the upload path, as Spark does. Returns where it is then. */
  private String upload(String path) {
    try {
      return KubernetesUtils.uploadFileUri(path, Option.apply(sparkConf()));
    } catch (Exception e) {
      Throwable cause = e;
      while (cause.getCause() != null) {
        cause = cause.getCause();
      }
      throw new IllegalArgumentException(path + " cannot be copied to " + ClusterMode.UPLOAD_PATH + ", which is "
          + conf.get(ClusterMode.UPLOAD_PATH) + ": " + cause.getMessage() + "; the jars of its file system must be in "
          + place.sparkHome() + "/jars or SPARK_DIST_CLASSPATH", e);
    }
  }

  /** Everything of the configuration that does not describe the driver. */
  private Set<String> mapped(ObjectNode configuration) {
    Set<String> keys = Keys.map(conf, configuration);
    configuration.put("app", app());
    configuration.putArray("executors");
    return keys;
  }

  /** The application's name, as posse takes one: at most 40 of [a-z0-9-], with a letter in front. */
  private String app() {
    String first = arguments.application().isEmpty() ? "spark" : arguments.application().get(0);
    String file = first.substring(first.lastIndexOf('/') + 1).replaceAll("(?<=.)\\.[A-Za-z]+$", "");
    String name = conf.getOrDefault("spark.app.name", file).toLowerCase(Locale.ROOT).replaceAll("[^a-z0-9]+", "-");
    String begun = name.replaceAll("^-+", "");
    String app = begun.matches("[a-z].*") ? begun : "spark-" + begun;
    return app.substring(0, Math.min(app.length(), APP_CHARS_MAX)).replaceAll("-+$", "");
  }

  private static void set(List<String> words, String key, String value) {
    words.addAll(List.of("--conf", key + "=" + value));
  }

  private void setFromEnv(List<String> words, String key, String name) {
    String value = env.getOrDefault(name, "");
    if (!value.isEmpty()) {
      set(words, key, value);
    }
  }

  /** Spark takes an IPv6 address as URLs have it. Kubernetes gives it without brackets. */
  static String bracketed(String host) {
    return host.contains(":") && !host.startsWith("[") ? "[" + host + "]" : host;
  }

  private void named(List<String> words, String option, String key) {
    if (conf.containsKey(key)) {
      words.addAll(List.of(option, conf.get(key)));
    }
  }

  /** The status of posse, which names its API server for Spark's own calls. */
  private JsonNode posse() {
    Control control = Settings.control(sparkConf().setIfMissing("spark.posse.control", env.getOrDefault("POSSE_CONTROL", ""))
        .setIfMissing("spark.posse.control.tokenFile", env.getOrDefault("POSSE_CONTROL_TOKEN_FILE", "")));
    try {
      JsonNode status = control.status();
      if (status.path("server").asText().isEmpty()) {
        throw new IllegalArgumentException("posse at " + control.address + " does not tell its API server: use a newer posse");
      }
      return status;
    } catch (IOException e) {
      throw control.silent(e);
    }
  }

  /**
   * Spark's client finds its credentials by itself: those of a context or of the pod's account. They must be of this server,
   * which gets them, unless the configuration names others; and so must those be that somebody has named for a master. One server
   * may have contexts of several users.
   */
  private void checkCredentials(String server, String context) {
    Config found;
    try {
      found = Config.autoConfigure(context.isEmpty() ? null : context);
    } catch (KubernetesClientException e) {
      // Its text may quote the file, and so a token.
      throw new IllegalArgumentException("Spark cannot read the file of KUBECONFIG, or ~/.kube/config", e);
    }
    boolean isFound = address(found.getMasterUrl()).equals(address(server));
    if (!isFound && !replaces(found)) {
      throw new IllegalArgumentException("posse's API server is " + server + ", and Spark's credentials are of "
          + found.getMasterUrl() + ": set spark.kubernetes.context to posse's context, and KUBECONFIG to the one file that has it");
    }
    // Without it the client takes the current one.
    if (!context.isEmpty() && !replaces(found) && (found.getCurrentContext() == null || !found.getCurrentContext().getName().equals(context))) {
      throw new IllegalArgumentException("Spark finds no context " + context + ": set KUBECONFIG to the one file that has it");
    }
    String master = conf.getOrDefault("spark.master", "k8s://" + server).substring("k8s://".length());
    boolean isPods = isFound && found.getCurrentContext() == null && master.matches(POD_SERVER);
    if (!isPods && !address(master).equals(address(server))) {
      throw new IllegalArgumentException("--master is k8s://" + master + ", and posse's API server is " + server
          + ": leave it out, or set spark.kubernetes.context to a context of that server for both");
    }
  }

  /** Whether the keys of client mode name credentials. Beside a certificate a token that is found would go along. */
  private boolean replaces(Config found) {
    Predicate<String> isSet = key -> !conf.getOrDefault("spark.kubernetes.authenticate." + key, "").isEmpty();
    return isSet.test("oauthToken") || isSet.test("oauthTokenFile") || isSet.test("clientCertFile") && found.getAutoOAuthToken() == null;
  }

  /** One form of a URL: Spark's default scheme, no default port and no slash at the end. */
  private static String address(String url) {
    String whole = (url.contains("://") ? url : "https://" + url).toLowerCase(Locale.ROOT).replaceFirst("/+$", "");
    return whole.replaceFirst("^(https://[^/]+):443(?=/|$)|^(http://[^/]+):80(?=/|$)", "$1$2");
  }

  /** Spark's own message for this has fifty lines. */
  private void checkEventLog() {
    String folder = conf.getOrDefault("spark.eventLog.dir", "file:///tmp/spark-events");
    if (!Boolean.parseBoolean(conf.getOrDefault("spark.eventLog.enabled", "false")) || folder.matches("(?!file:)[a-z0-9]+:.*")) {
      return;
    }
    Path path = Path.of(folder.replaceFirst("^file:(//)?", ""));
    if (!Files.isDirectory(path) || !Files.isWritable(path)) {
      throw new IllegalArgumentException("spark.eventLog.dir is " + folder + ", which is no folder that this user may write:"
          + " make it, or name another one");
    }
  }

  /** What becomes of each key. */
  String explain() {
    Map<String, String> others = new TreeMap<>(conf);
    StringBuilder text = new StringBuilder();
    for (Keys.Key key : Keys.ALL) {
      Optional<String> value = Optional.ofNullable(others.remove(key.name()));
      String name = key.name() + value.map(there -> "=" + there).orElse("");
      text.append(String.format("%-60s -> %s%n", name, Keys.explain(key, value)));
    }
    boolean isCluster = conf.getOrDefault("spark.submit.deployMode", "client").equals("cluster");
    Map<String, String> driver = isCluster
        ? new ClusterMode(place, arguments, conf, path -> path).explain(why -> text.append("refused: ").append(why).append('\n'))
        : ClusterMode.inClientMode(conf);
    Pattern secret = Pattern.compile(conf.getOrDefault("spark.redaction.regex", SECRET));
    others.forEach((key, value) -> {
      Optional<String> there = key.equals("spark.master") ? Optional.of(master(value, isCluster))
          : Keys.other(key, value).map(note -> "nothing: " + note).or(() -> Optional.ofNullable(driver.get(key)));
      if (there.isPresent() || key.startsWith("spark.kubernetes.")) {
        // As Spark shows it.
        String shown = secret.matcher(key).find() || secret.matcher(value).find() ? "*********(redacted)" : value;
        text.append(String.format("%-60s -> %s%n", key + "=" + shown, there.orElse("unchanged")));
      }
    });
    return text.toString();
  }

  private static String master(String master, boolean isCluster) {
    return !master.startsWith("k8s://") ? "refused: posse has no executors there; leave it out, or name the API server as k8s://URL"
        : (isCluster ? "nothing" : "refused if it is another one")
            + ": posse calls the server of the kubeconfig, or of spark.kubernetes.context";
  }
}
