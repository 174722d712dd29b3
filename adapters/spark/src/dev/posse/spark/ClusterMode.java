package dev.posse.spark;

import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.UnaryOperator;
import java.util.regex.PatternSyntaxException;
import java.util.stream.Stream;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.fasterxml.jackson.dataformat.yaml.YAMLFactory;

import org.apache.spark.launcher.SparkLauncher;
import org.apache.spark.network.util.JavaUtils;
import org.apache.spark.package$;

/** The driver of `posse submit`, made of Spark's keys for its own driver's pod. */
final class ClusterMode {
  private static final String DRIVER = "spark.kubernetes.driver.";
  private static final ObjectMapper YAML = new ObjectMapper(new YAMLFactory());
  private static final double NO_JVM_FACTOR = 0.4;
  private static final String FACTOR = "spark.kubernetes.memoryOverheadFactor";
  private static final String RESOURCE = "spark.driver.resource.";
  /** Options and keys whose files of this machine come along. Spark copies them into the driver's working directory. */
  private static final Set<String> FILES = Set.of("--jars", "--files", "--py-files", "--archives", "spark.jars", "spark.files",
      "spark.submit.pyFiles", "spark.archives");
  /** The same, but never by the upload path: Spark reads them before it reads that. */
  private static final Set<String> FIRST_FILES = Set.of("--keytab", "spark.kerberos.keytab", "spark.kubernetes.executor.podTemplateFile");
  /** Options that are of no use in the driver's pod, where the driver is in client mode. */
  private static final Set<String> HERE = Set.of("--deploy-mode", "--master", "--properties-file", "--conf");
  /** The same for keys. The driver's address and its pod's name come from the pod. */
  private static final Set<String> KEYS_HERE = Set.of("spark.submit.deployMode", "spark.master", "spark.kubernetes.context",
      DRIVER + "pod.name", "spark.driver.host", "spark.driver.bindAddress");
  /** Keys with this prefix that the driver itself reads. */
  private static final Set<String> OF_CLIENTS = Set.of(DRIVER + "pod.name", DRIVER + "ownPersistentVolumeClaim",
      DRIVER + "reusePersistentVolumeClaim", DRIVER + "waitToReusePersistentVolumeClaim",
      DRIVER + "service.deleteOnTermination", DRIVER + "master", DRIVER + "connectionTimeout", DRIVER + "requestTimeout",
      DRIVER + "annotateExitException");
  static final String UPLOAD_PATH = "spark.kubernetes.file.upload.path";
  private static final String WAIT = "spark.kubernetes.submission.waitAppCompletion";
  static final String HADOOP = "put Hadoop's configuration into the image, or name its keys as spark.hadoop.NAME";
  private static final String ACCOUNT = "the driver has the token of its service account";
  private static final String CALLS = "posse calls the API server";
  /** Keys of the driver's pod, and of Spark's steps which make it: none runs here. The first prefix counts. */
  private static final List<Keys.Other> WITHOUT = List.of(
      new Keys.Other(DRIVER + "pod.name", "the Job names its pods"),
      new Keys.Other(DRIVER, DRIVER + "podTemplateFile has what it says"),
      new Keys.Other("spark.driver.host", "executors dial the pod's address"),
      new Keys.Other("spark.driver.bindAddress", "the driver listens at the pod's address"),
      new Keys.Other("spark.kubernetes.authenticate.driver.ca", ACCOUNT),
      new Keys.Other("spark.kubernetes.authenticate.driver.client", ACCOUNT),
      new Keys.Other("spark.kubernetes.authenticate.driver.oauth", ACCOUNT),
      new Keys.Other("spark.kubernetes.authenticate.submission.", CALLS),
      new Keys.Other("spark.kubernetes.submission.connectionTimeout", CALLS),
      new Keys.Other("spark.kubernetes.submission.requestTimeout", CALLS),
      new Keys.Other("spark.kubernetes.hadoop.configMapName", HADOOP),
      new Keys.Other("spark.kubernetes.kerberos.", "put krb5.conf into the image; posse's credentials bring tokens"));
  /** What `posse submit --file` takes, in all: the limit of a Secret, less what else is in it. */
  private static final long FILE_BYTES_MAX = 700_000;
  private static final int LABEL_CHARS_MAX = 63;
  /** The user of Spark's image. Hadoop's code needs one that has a name. */
  private static final int SPARK_USER = 185;

  private final Submit.Place place;
  private final Arguments arguments;
  private final Map<String, String> conf;
  /** Copies a file to the upload path and returns where it is then. */
  private final UnaryOperator<String> upload;
  /** Keys that are in posse's configuration. */
  private final Set<String> used = new TreeSet<>();
  /** The driver's pod names a service account. */
  private boolean hasAccount;
  /** Files of this machine for the pods, by their names there. */
  private final Map<String, String> files = new LinkedHashMap<>();

  ClusterMode(Submit.Place place, Arguments arguments, Map<String, String> conf, UnaryOperator<String> upload) {
    this.place = place;
    this.arguments = arguments;
    this.conf = conf;
    this.upload = upload;
  }

  /** What becomes of the keys of this mode. `refused`: why the application is not submitted as it is. */
  Map<String, String> explain(Consumer<String> refused) {
    Map<String, String> explained = new TreeMap<>();
    try {
      describe(Control.JSON.createObjectNode(), Set.of());
    } catch (IllegalArgumentException e) {
      refused.accept(e.getMessage());
    }
    used.forEach(key -> explained.put(key, key.startsWith(DRIVER) ? "the driver's pod" : "the driver's pod, and unchanged"));
    without().forEach((key, note) -> explained.put(key, "nothing: " + note));
    explained.put(UPLOAD_PATH, "files of this machine are copied there, and the driver gets them from there");
    FILES.forEach(key -> explained.put(key, "files of this machine come along"));
    FIRST_FILES.forEach(key -> explained.put(key, "a file of this machine comes along"));
    explained.put(WAIT, "posse submit --logs or --no-wait");
    explained.put("spark.kubernetes.context", "posse submit --context");
    return explained;
  }

  /** What becomes of the keys that have a meaning in cluster mode only. */
  static Map<String, String> inClientMode(Map<String, String> conf) {
    Map<String, String> explained = new TreeMap<>();
    conf.keySet().stream().filter(key -> key.startsWith(DRIVER) && !OF_CLIENTS.contains(key))
        .forEach(key -> explained.put(key, "nothing in client mode: nobody makes a pod for the driver"));
    explained.put(UPLOAD_PATH, "nothing in client mode: the driver has the files of this machine, and executors get them from it");
    explained.put(WAIT, "nothing in client mode");
    explained.put("spark.kubernetes.context", "posse run --context, and unchanged");
    return explained;
  }

  /** @param told keys for which posse's configuration has something */
  void describe(ObjectNode configuration, Set<String> told) {
    ObjectNode driver = configuration.withObject("/driver");
    if (!driver.has("retries")) {
      // As with Spark, an application that fails has failed. A lost pod costs no retry.
      driver.put("retries", 0);
    }
    String image = take(DRIVER + "container.image").or(() -> take("spark.kubernetes.container.image")).orElse("")
        .replace("{{SPARK_VERSION}}", package$.MODULE$.SPARK_VERSION());
    driver.put("image", image);
    text(driver, "posse_image", "spark.posse.image");
    variables(driver);
    ObjectNode pod = template();
    driver.set("pod", pod);
    text(driver, "container", DRIVER + "podTemplateContainerName");
    ObjectNode container = container(pod, driver.path("container").asText());
    resources(container.withObject("/resources"));
    int page = number("spark.ui.port", Integer::parseInt).orElse(4040);
    if (page > 0) {
      // Prometheus finds only ports that a container declares.
      container.withArray("ports").addObject().put("name", "spark-ui").put("containerPort", page);
    }
    ObjectNode metadata = pod.withObject("/metadata");
    // The adapter adds the application's id, which is another one for each try of the Job.
    metadata.withObject("/labels").put("spark-role", "driver").put("spark-app-name", appName());
    each(DRIVER + "label.", (name, value) -> metadata.withObject("/labels").put(name, value));
    each(DRIVER + "annotation.", (name, value) -> metadata.withObject("/annotations").put(name, value));
    take("spark.kubernetes.container.image.pullPolicy").ifPresent(policy -> container.put("imagePullPolicy", policy));
    ObjectNode spec = pod.withObject("/spec");
    take(DRIVER + "scheduler.name").or(() -> take("spark.kubernetes.scheduler.name"))
        .ifPresent(name -> spec.put("schedulerName", name));
    take("spark.kubernetes.authenticate.driver.serviceAccountName").ifPresent(name -> spec.put("serviceAccountName", name));
    hasAccount = spec.hasNonNull("serviceAccountName");
    // Those for all pods, then those for the driver's.
    for (String prefix : List.of("spark.kubernetes.node.selector.", DRIVER + "node.selector.")) {
      each(prefix, (name, value) -> spec.withObject("/nodeSelector").put(name, value));
    }
    each(DRIVER + "secrets.", (name, path) -> {
      String volume = name + "-volume";
      spec.withArray("volumes").addObject().put("name", volume).putObject("secret").put("secretName", name);
      container.withArray("volumeMounts").addObject().put("name", volume).put("mountPath", path);
    });
    take("spark.kubernetes.container.image.pullSecrets").ifPresent(names -> {
      for (String name : names.split(" *, *")) {
        spec.withArray("imagePullSecrets").addObject().put("name", name);
      }
    });
    driver.putArray("command").add("sh").add("-c").add(command(image, told));
  }

  /** As Spark writes it: its own function starts the logging. */
  private String appName() {
    String application = arguments.application().isEmpty() ? "spark" : arguments.application().get(0);
    String file = application.substring(application.lastIndexOf('/') + 1);
    String name = conf.getOrDefault("spark.app.name", arguments.last("--class").orElse(file)).strip();
    String label = name.toLowerCase(Locale.ROOT).replaceAll("[^a-z0-9-]", "-").replaceAll("-+", "-");
    return label.substring(0, Math.min(label.length(), LABEL_CHARS_MAX)).replaceAll("^-|-$", "");
  }

  private Optional<String> take(String key) {
    Optional<String> value = Optional.ofNullable(conf.get(key));
    value.ifPresent(there -> used.add(key));
    return value;
  }

  private <T> Optional<T> number(String key, Function<String, T> parse) {
    return take(key).map(text -> {
      try {
        return parse.apply(text);
      } catch (IllegalArgumentException e) {
        throw new IllegalArgumentException(key + " is " + text + ": " + e.getMessage(), e);
      }
    });
  }

  private void text(ObjectNode driver, String name, String key) {
    take(key).ifPresent(value -> driver.put(name, value));
  }

  private void each(String prefix, BiConsumer<String, String> entry) {
    conf.forEach((key, value) -> {
      if (key.startsWith(prefix) && !isLate(key)) {
        used.add(key);
        entry.accept(key.substring(prefix.length()), value);
      }
    });
  }

  /** A label or an annotation with a variable of Spark. All tries of the Job have one template, and each its own id. */
  private boolean isLate(String key) {
    return Stream.of("label.", "annotation.").anyMatch(kind -> key.startsWith(DRIVER + kind))
        && Stream.of("{{APP_ID}}", "{{EXECUTOR_ID}}").anyMatch(conf.get(key)::contains);
  }

  /** As Spark computes them: its memory with the overhead, and the limit of CPU only if there is one. */
  private void resources(ObjectNode resources) {
    long memory = number("spark.driver.memory", JavaUtils::byteStringAsMb).orElse(1024L);
    double factor = number("spark.driver.memoryOverheadFactor", Double::parseDouble)
        .or(() -> number(FACTOR, Double::parseDouble)).orElse(isNoJvm() ? NO_JVM_FACTOR : 0.1);
    long least = number("spark.driver.minMemoryOverhead", JavaUtils::byteStringAsMb).orElse(384L);
    long overhead = number("spark.driver.memoryOverhead", JavaUtils::byteStringAsMb)
        .orElse(Math.max((long) (factor * memory), least));
    String all = memory + overhead + "Mi";
    String cores = take(DRIVER + "request.cores").or(() -> take("spark.driver.cores")).orElse("1");
    resources.withObject("/requests").put("cpu", cores).put("memory", all);
    ObjectNode limits = resources.withObject("/limits").put("memory", all);
    take(DRIVER + "limit.cores").ifPresent(limit -> limits.put("cpu", limit));
    each(RESOURCE, (name, value) -> {
      String kind = name.replaceFirst("\\.amount$", "");
      if (!kind.equals(name)) {
        String vendor = RESOURCE + kind + ".vendor";
        if (conf.getOrDefault(vendor, "").isBlank()) {
          throw new IllegalArgumentException(RESOURCE + name + " is " + value + ", and the vendor is missing: set " + vendor);
        }
        limits.put(conf.get(vendor) + "/" + kind, value);
      }
    });
  }

  private boolean isNoJvm() {
    return arguments.application().stream().limit(1).anyMatch(file -> file.matches(".*\\.(py|[rR])"));
  }

  private void variables(ObjectNode driver) {
    ArrayNode variables = Control.JSON.createArrayNode();
    each("spark.kubernetes.driverEnv.", (name, value) -> variables.addObject().put("name", name).put("value", value));
    each(DRIVER + "secretKeyRef.", (name, value) -> {
      String[] pair = value.split(":", 2);
      if (pair.length < 2) {
        // Somebody may have written the secret itself.
        throw new IllegalArgumentException(DRIVER + "secretKeyRef." + name + " should be SECRET:KEY");
      }
      variables.addObject().put("name", name).putObject("valueFrom").putObject("secretKeyRef").put("name", pair[0])
          .put("key", pair[1]);
    });
    if (!variables.isEmpty()) {
      driver.set("env", variables);
    }
  }

  /** The pod of the file, or one for Spark's image. */
  private ObjectNode template() {
    Optional<String> file = take(DRIVER + "podTemplateFile");
    if (file.isPresent()) {
      try {
        if (YAML.readTree(here(file.get()).toFile()) instanceof ObjectNode pod) {
          return pod;
        }
      } catch (IOException e) {
        throw new IllegalArgumentException(DRIVER + "podTemplateFile is " + file.get() + ": " + e.getMessage(), e);
      }
      throw new IllegalArgumentException(DRIVER + "podTemplateFile is " + file.get() + ", which is no pod");
    }
    ObjectNode pod = Control.JSON.createObjectNode();
    ObjectNode spec = pod.putObject("spec");
    spec.putObject("securityContext").put("runAsNonRoot", true).put("runAsUser", SPARK_USER)
        .putObject("seccompProfile").put("type", "RuntimeDefault");
    spec.putArray("containers").addObject().put("name", "spark-kubernetes-driver");
    return pod;
  }

  /** The driver's container: the one with this name, else the first. */
  private static ObjectNode container(ObjectNode pod, String name) {
    ObjectNode first = null;
    for (JsonNode one : pod.path("spec").path("containers")) {
      if (one instanceof ObjectNode container) {
        first = first == null ? container : first;
        if (container.path("name").asText().equals(name)) {
          return container;
        }
      }
    }
    // posse says what is wrong with the pod.
    return first == null ? Control.JSON.createObjectNode() : first;
  }

  /** The same program in the driver's pod, with the same keys and files. */
  private String command(String image, Set<String> told) {
    files.clear();
    if (image.isEmpty()) {
      throw new IllegalArgumentException("there is no image: set spark.kubernetes.container.image");
    }
    String script = bring(place.script(), false);
    // A pod does not know its image, and a message should name it. The jar may have any name.
    StringBuilder text = new StringBuilder("exec env POSSE_SPARK_IMAGE=").append(Submit.quoted(image))
        .append(" POSSE_SPARK_JAR=").append(bring(place.jar(), false)).append(" sh ").append(script);
    arguments.flagsOfSpark().forEach(flag -> text.append(' ').append(Submit.quoted(flag)));
    boolean hasFiles = false;
    for (Arguments.Option option : arguments.options()) {
      if (!HERE.contains(option.name())) {
        text.append(' ').append(Submit.quoted(option.name())).append(' ').append(word(option.name(), "", option.value()));
        hasFiles |= FILES.contains(option.name()) && !names(option.value()).isEmpty();
      }
    }
    Map<String, String> keys = new TreeMap<>(conf);
    keys.keySet().removeAll(KEYS_HERE);
    // Many may read the Job's ConfigMap, and one of these may be a token.
    keys.keySet().removeAll(without().keySet());
    keys.put(Keys.TOLD, String.join(",", told));
    hasFiles |= FILES.stream().anyMatch(key -> !names(keys.getOrDefault(key, "")).isEmpty());
    if (hasFiles) {
      // Then Spark copies the files into the working directory and unpacks the archives, as in its own cluster mode.
      text.insert(0, "dir=$(mktemp -d) && cd \"$dir\" && ");
      keys.put("spark.kubernetes.submitInDriver", "true");
    }
    if (isNoJvm()) {
      // Spark's cluster mode gives executors the factor of the driver's pod.
      keys.putIfAbsent(FACTOR, String.valueOf(NO_JVM_FACTOR));
    }
    keys.forEach((key, value) -> text.append(" --conf ").append(word(key, key + "=", value)));
    List<String> application = arguments.application();
    if (application.isEmpty() || application.get(0).isBlank()) {
      throw new IllegalArgumentException("there is no application: name its jar or its .py file");
    }
    String first = application.get(0);
    text.append(' ').append(first.equals(SparkLauncher.NO_RESOURCE) ? Submit.quoted(first) : paths(first, true));
    application.subList(1, application.size()).forEach(word -> text.append(' ').append(Submit.quoted(word)));
    checkSize();
    return text.toString();
  }

  private void checkSize() {
    long bytes = files.values().stream().mapToLong(path -> Path.of(path).toFile().length()).sum();
    if (bytes > FILE_BYTES_MAX) {
      throw new IllegalArgumentException("files of this machine have " + bytes + " bytes (" + String.join(", ", files.values())
          + "), and " + FILE_BYTES_MAX + " come along: " + (conf.containsKey(UPLOAD_PATH) ? ""
          : "set " + UPLOAD_PATH + " to a folder that the driver reaches, such as s3a://bucket/uploads, or ")
          + "put them into the image and name them as local:///PATH");
    }
  }

  /** The value of an option or a key, behind `before`, as a word of a shell. */
  private String word(String name, String before, String value) {
    boolean isFirst = FIRST_FILES.contains(name);
    return !isFirst && !FILES.contains(name) || names(value).isEmpty() ? Submit.quoted(before + value)
        : (before.isEmpty() ? "" : Submit.quoted(before)) + paths(value, !isFirst);
  }

  /** The files of a list. As Spark does, nothing stands for no file. */
  private static List<String> names(String list) {
    return Stream.of(list.split(",")).filter(one -> !one.isBlank()).toList();
  }

  /** A list of files as words of a shell; those of this machine come along, or are uploaded. */
  private String paths(String list, boolean isUploaded) {
    List<String> words = new ArrayList<>();
    for (String one : names(list)) {
      String path = one.replaceFirst("#.*", "");
      String alias = one.substring(path.length());
      if (path.matches("(?!file:)[a-z0-9]+:.*")) {
        words.add(Submit.quoted(one));
      } else if (isUploaded && conf.containsKey(UPLOAD_PATH)) {
        all(path).forEach(file -> words.add(Submit.quoted(upload.apply(file) + alias)));
      } else {
        all(path).forEach(file -> words.add(bring(file, isUploaded) + Submit.quoted(alias)));
      }
    }
    return String.join(",", words);
  }

  private static Path here(String path) {
    return Path.of(path.replaceFirst("^(file|local):(//)?", ""));
  }

  /** The files of this machine with this path, whose name may have wildcards. */
  private static List<String> all(String path) {
    Path file = here(path);
    List<String> all = new ArrayList<>();
    if (Files.isRegularFile(file)) {
      all.add(file.toString());
    } else {
      try (DirectoryStream<Path> found = Files.newDirectoryStream(file.resolveSibling(""), String.valueOf(file.getFileName()))) {
        found.forEach(one -> all.add(one.toString()));
      } catch (IOException | PatternSyntaxException e) {
        // There is no such folder, or no such pattern.
      }
    }
    all.removeIf(one -> !Files.isRegularFile(Path.of(one)));
    if (all.isEmpty()) {
      throw new IllegalArgumentException(path + " is no file of this machine: name one of the image as local:///PATH");
    }
    Collections.sort(all);
    return all;
  }

  /** Lets a file come along, and returns where it is then. With an upload path it would be uploaded, or not. */
  private String bring(String path, boolean isUploaded) {
    String name = Path.of(path).getFileName().toString();
    String other = files.putIfAbsent(name, path);
    String remedy = isUploaded ? ", or set " + UPLOAD_PATH : "";
    if (other != null && !Path.of(path).toAbsolutePath().normalize().equals(Path.of(other).toAbsolutePath().normalize())) {
      throw new IllegalArgumentException(other + " and " + path + " have one name: rename one" + remedy);
    }
    if (!name.matches("[A-Za-z0-9._-]+")) {
      throw new IllegalArgumentException(path + " has a name with other characters than letters, digits, ., _ and -: rename it"
          + remedy);
    }
    return "\"$POSSE_FILES_DIR\"/" + Submit.quoted(name);
  }

  /** Options of `posse submit`. */
  List<String> options() {
    List<String> options = new ArrayList<>();
    if (!hasAccount) {
      options.add("--create-rbac");
    }
    boolean waits = Boolean.parseBoolean(conf.getOrDefault(WAIT, "true"));
    options.add(waits ? "--logs" : "--no-wait");
    files.values().forEach(path -> options.addAll(List.of("--file", path)));
    return options;
  }

  /** One line with what is set and has no effect. */
  Optional<String> told() {
    List<String> told = new ArrayList<>();
    without().forEach((key, note) -> told.add(key + " (" + note + ")"));
    return Keys.line(told);
  }

  private Map<String, String> without() {
    Map<String, String> without = new TreeMap<>();
    for (String key : conf.keySet()) {
      if (KEYS_HERE.contains(key) || !used.contains(key) && !OF_CLIENTS.contains(key)) {
        Keys.note(WITHOUT, key).ifPresent(note -> without.put(key, note));
      }
      if (key.endsWith(".oauthToken")) {
        // Spark's cluster mode keeps these from the driver, too.
        without.putIfAbsent(key, ACCOUNT);
      } else if (isLate(key)) {
        without.put(key, "the pod is there before the application has its id");
      }
    }
    return without;
  }
}
