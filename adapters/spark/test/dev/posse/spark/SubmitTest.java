package dev.posse.spark;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Stream;

import com.fasterxml.jackson.databind.JsonNode;

import org.apache.spark.deploy.k8s.KubernetesConf$;

/** What posse-spark-submit calls. */
final class SubmitTest {
  private static final Submit.Place PLACE = new Submit.Place("/spark", "/bin/posse", "/b/posse-spark-submit", "/b/posse-spark.jar", "/p");
  /** What posse gives to its driver. */
  private static final Map<String, String> INSIDE = new HashMap<>();

  private SubmitTest() {}

  static void all() throws Exception {
    try (FakePosse posse = new FakePosse()) {
      INSIDE.putAll(posse.env());
      server(posse);
      account();
      calls();
    }
  }

  private static void calls() throws Exception {
    words();
    inside();
    inPod();
    addresses();
    outside();
    keys();
    cluster();
    variables();
    podOfJob();
    memory();
    noEffect();
    filesOfMachine();
    named();
    names();
    upload();
    refused();
    eventLog();
    explain();
    redacted();
    versions();
  }

  private static Submit.Call call(Map<String, String> env, String... words) {
    return new Submit(env, PLACE, List.of(words)).call();
  }

  private static List<String> confs(Submit.Call call) {
    List<String> words = call.words();
    return Stream.iterate(1, i -> i < words.size(), i -> i + 1).filter(i -> words.get(i - 1).equals("--conf")).map(words::get)
        .toList();
  }

  private static void words() {
    Check.same(Submit.quoted("it's"), "'it'\\''s'");
    Arguments all = Arguments.parse(List.of("--verbose", "--conf=a=b=c", "--name", "x", "-c", "d=e", "app.py", "--name", "y"));
    Check.same(all.application(), List.of("app.py", "--name", "y"));
    Check.same(all.words(), List.of("--verbose", "--conf", "a=b=c", "--name", "x", "--conf", "d=e"));
    Check.same(all.conf(Path.of("/none")), Map.of("a", "b=c", "d", "e", "spark.app.name", "x"));
    Check.fails(() -> Arguments.parse(List.of("--name")), "Missing argument for option '--name'");
    // Neither it nor what follows is the application.
    for (String option : List.of("--nonsense", "-x")) {
      Check.fails(() -> Arguments.parse(List.of("--dev", option, "app.py")), "unrecognized option " + option,
          "posse-spark-submit --help");
    }
    // What follows the application is its own.
    Check.same(Arguments.parse(List.of("app.py", "--nonsense")).application(), List.of("app.py", "--nonsense"));
    Check.fails(() -> Arguments.parse(List.of("--conf", "x")).conf(Path.of("/none")), "--conf x is no KEY=VALUE");
  }

  private static void inside() {
    Submit.Call call = call(INSIDE, "--conf", "spark.executor.maxNumFailures=3", "app.py", "a b");
    Check.same(call.words().get(0), "/spark/bin/spark-submit");
    Check.same(call.words().subList(call.words().size() - 2, call.words().size()), List.of("app.py", "a b"));
    List<String> confs = confs(call);
    // The last value of a key wins.
    assert confs.indexOf("spark.executor.maxNumFailures=2147483647") > confs.indexOf("spark.executor.maxNumFailures=3") : confs;
    assert confs.contains("spark.kubernetes.namespace=n") : confs;
    assert confs.contains("spark.posse.told=spark.executor.maxNumFailures") : confs;
    Check.same(call.told(), List.of("no effect with posse: spark.executor.maxNumFailures (failures.app in posse.yaml)"));
    // Nothing is told twice.
    Check.same(call(INSIDE, "--conf", "spark.executor.maxNumFailures=3", "--conf", "spark.posse.told=spark.executor.maxNumFailures",
        "app.py").told(), List.of());
    // Another allocator is left alone.
    List<String> other = confs(call(INSIDE, "--conf", "spark.kubernetes.allocation.pods.allocator=direct", "app.py"));
    assert other.stream().noneMatch(conf -> conf.contains("maxNumFailures")) : other;
  }

  private static void inPod() {
    Map<String, String> env = new HashMap<>(INSIDE);
    env.putAll(Map.of("POD_NAME", "driver", "POD_IP", "10.0.0.9"));
    List<String> confs = confs(call(env, "app.py"));
    for (String want : List.of("spark.kubernetes.driver.pod.name=driver", "spark.kubernetes.executor.disableConfigMap=true",
        "spark.kubernetes.driver.ownPersistentVolumeClaim=false", "spark.kubernetes.driver.service.deleteOnTermination=false",
        "spark.driver.host=10.0.0.9")) {
      assert confs.contains(want) : want + " in " + confs;
    }
  }

  /** Kubernetes gives an IPv6 address without brackets, and Spark takes it with them. */
  private static void addresses() {
    Map<String, String> env = new HashMap<>(INSIDE);
    for (String[] row : new String[][] {{"10.0.0.9", "10.0.0.9"}, {"2001:db8::7", "[2001:db8::7]"}, {"::1", "[::1]"},
        {"[2001:db8::7]", "[2001:db8::7]"}, {"fe80::1%eth0", "[fe80::1%eth0]"}}) {
      env.put("POD_IP", row[0]);
      assert confs(call(env, "app.py")).contains("spark.driver.host=" + row[1]) : row[1];
    }
  }

  /** Spark finds its credentials in the kubeconfig of this property. */
  private static final String KUBECONFIG = "kubeconfig";

  private static String kubeconfig(String current) throws Exception {
    return Files.writeString(Files.createTempFile("kube", "config"), "current-context: " + current + "\ncontexts: [{name: s, context:"
        + " {cluster: s, user: u}}, {name: a, context: {cluster: a, user: u}}]\nusers: [{name: u, user: {token: t}}]\nclusters: ["
        + "{name: s, cluster: {server: 'https://S:6443/'}}, {name: a, cluster: {server: 'https://s:6443/a'}}]\n").toString();
  }

  private static void master(String... words) {
    List<String> all = call(INSIDE, Stream.concat(Stream.of(words), Stream.of("app.py")).toArray(String[]::new)).words();
    // The last value wins.
    Check.same(all.get(all.lastIndexOf("--master") + 1), "k8s://https://s:6443");
    Check.same(all.stream().filter(word -> word.startsWith("spark.kubernetes.driver.master=")).reduce((a, b) -> b).orElseThrow(),
        "spark.kubernetes.driver.master=https://s:6443");
  }

  /** Without a master spark-submit would do all work in the driver. Spark's credentials must be of the server that gets them. */
  private static void server(FakePosse posse) throws Exception {
    String context = "spark.kubernetes.context=";
    System.setProperty(KUBECONFIG, kubeconfig("a"));
    master("--conf", context + "s");
    for (String[] other : new String[][] {{}, {"--master", "k8s://https://s:6443"}, {"--conf", context + "a"}, {"--conf", context},
        {"--conf", context + "none"}, {"--conf", "spark.kubernetes.allocation.pods.allocator=direct"}}) {
      Check.fails(() -> call(INSIDE, Stream.concat(Stream.of(other), Stream.of("app.py")).toArray(String[]::new)),
          "posse's API server is https://s:6443", "set spark.kubernetes.context", "KUBECONFIG");
    }
    tokens();
    System.setProperty(KUBECONFIG, Files.writeString(Files.createTempFile("kube", "config"), "{a").toString());
    Check.fails(() -> call(INSIDE, "app.py"), "Spark cannot read the file of KUBECONFIG");
    System.setProperty(KUBECONFIG, kubeconfig("s"));
    master();
    master("--master", "k8s://s:6443");
    master("--conf", "spark.kubernetes.driver.master=https://x");
    for (String other : List.of("https://x", "https://s", "http://s:6443", "https://s:6443/a", "https://kubernetes.default.svc")) {
      Check.fails(() -> call(INSIDE, "--master", "k8s://" + other, "app.py"), "--master is k8s://" + other, "leave it out");
    }
    // The context that posse has is not the current one, and may be of another user. Where there is no such context, Spark
    // 3.5 takes the server of a pod.
    Map<String, String> refused = Map.of("a", "posse's API server is https://s:6443", "none", "to the one file that has it");
    for (String of : List.of("s", "a", "none")) {
      posse.answers.put("GET /v1/status", "200 {\"run\":\"r\",\"server\":\"https://s:6443\",\"context\":\"" + of + "\"}");
      if (refused.containsKey(of)) {
        Check.fails(() -> call(INSIDE, "app.py"), refused.get(of), "KUBECONFIG");
      } else {
        assert confs(call(INSIDE, "app.py")).contains(context + of) : of;
      }
      assert confs(call(INSIDE, "--conf", context + "s", "app.py")).contains(context + "s") : of;
    }
    posse.answers.put("GET /v1/status", "200 {\"run\":\"r\",\"server\":\"https://s:6443\",\"keep_executors\":true}");
    Check.fails(() -> call(INSIDE, "app.py"), "driver.keep_executors is true", "leave it out");
    posse.answers.put("GET /v1/status", "200 {\"run\":\"r\"}");
    Check.fails(() -> call(INSIDE, "app.py"), "does not tell its API server", "use a newer posse");
    posse.run("r1", "");
    Map<String, String> silent = Map.of("POSSE_CONTROL", "unix:/none", "POSSE_NAMESPACE", "n");
    Check.fails(() -> call(silent, "app.py"), "posse at unix:/none does not answer");
  }

  /** Credentials that the configuration names, with a kubeconfig of another server and with none. */
  private static void tokens() {
    String kubeconfig = System.getProperty(KUBECONFIG);
    String prefix = "spark.kubernetes.authenticate.";
    String[] certificate = {"--conf", prefix + "clientCertFile=c", "--conf", prefix + "clientKeyFile=k"};
    for (String file : List.of(kubeconfig, "/none")) {
      System.setProperty(KUBECONFIG, file);
      master("--conf", prefix + "oauthToken=t");
      master("--conf", prefix + "oauthTokenFile=t", "--conf", prefix + "caCertFile=c");
      for (String other : List.of("caCertFile=c", "oauthToken=")) {
        Check.fails(() -> call(INSIDE, "--conf", prefix + other, "app.py"), "and Spark's credentials are of");
      }
      for (String other : List.of("https://x", "kubernetes.default.svc")) {
        Check.fails(() -> call(INSIDE, "--conf", prefix + "oauthToken=t", "--master", "k8s://" + other, "app.py"), "leave it out");
      }
    }
    master(certificate);
    System.setProperty(KUBECONFIG, kubeconfig);
    // The token of that file would go along.
    Check.fails(() -> call(INSIDE, certificate[0], certificate[1], "app.py"), "and Spark's credentials are of");
  }

  /** In a pod the credentials are the account's, and its server has a second name. */
  private static void account() {
    String kubeconfig = System.setProperty(KUBECONFIG, "/none");
    Check.fails(() -> call(INSIDE, "app.py"), "posse's API server is https://s:6443");
    System.setProperty("KUBERNETES_SERVICE_HOST", "s");
    System.setProperty("KUBERNETES_SERVICE_PORT", "6443");
    master();
    for (String name : List.of("https://kubernetes.default.svc", "kubernetes.default.svc.cluster.local:443")) {
      master("--master", "k8s://" + name);
    }
    Check.fails(() -> call(INSIDE, "--master", "k8s://https://x", "app.py"), "leave it out");
    System.clearProperty("KUBERNETES_SERVICE_HOST");
    System.setProperty(KUBECONFIG, kubeconfig);
  }

  private static void outside() {
    Submit.Call call = call(Map.of(), "--dev", "--name", "Word Count", "app.py", "in");
    Check.same(call.words().subList(0, 7), List.of("/bin/posse", "run", "--dev", "-f", "/dev/fd/3", "--", "/b/posse-spark-submit"));
    Check.same(call.configuration().orElseThrow().toString(), "{\"app\":\"word-count\",\"executors\":[]}");
    assert confs(call).contains("spark.kubernetes.executor.podTemplateFile=/p/executor.yaml") : call.words();
    String shell = Submit.shell(call);
    assert shell.contains(" <<'POSSE_YAML'\n{\"app\":") && shell.endsWith(" 'app.py' 'in'\n") : shell;
    call = call(Map.of(), "--conf", "spark.kubernetes.context=c", "/x/7 days.py");
    Check.same(call.words().subList(0, 4), List.of("/bin/posse", "run", "--context", "c"));
    Check.same(call.configuration().orElseThrow().path("app").asText(), "spark-7-days");
  }

  private static void keys() throws Exception {
    String[] set = {"spark.executor.maxNumFailures=7", "spark.executor.failuresValidityInterval=90s",
        "spark.kubernetes.executor.deleteOnTermination=true", "spark.kubernetes.allocation.batch.size=999",
        "spark.kubernetes.allocation.executor.timeout=1500", "spark.kubernetes.allocation.maxPendingPods=5",
        "spark.kubernetes.namespace=n", "spark.kubernetes.allocation.batch.delay=2s"};
    List<String> words = Stream.concat(Stream.of(set).flatMap(one -> Stream.of("--conf", one)), Stream.of("app.py")).toList();
    Submit.Call call = new Submit(Map.of(), PLACE, words).call();
    Check.same(call.configuration().orElseThrow().toString(), "{\"namespace\":\"n\",\"failures\":{\"app\":7,\"window\":\"90s\","
        + "\"keep_failed\":0},\"allocation\":{\"in_flight_max\":256,\"start_timeout\":\"1500ms\",\"pending_max\":5},"
        + "\"app\":\"app\",\"executors\":[]}");
    String told = confs(call).stream().filter(conf -> conf.startsWith(Keys.TOLD)).findAny().orElseThrow();
    // The driver tells of what has nothing in its place.
    assert told.contains("maxNumFailures") && !told.contains("batch.delay") : told;
    Check.fails(() -> call(Map.of(), "--conf", "spark.executor.maxNumFailures=many", "app.py"),
        "spark.executor.maxNumFailures is many, which is no failures.app");
    Check.fails(() -> call(Map.of(), "--conf", "spark.executor.failuresValidityInterval=soon", "app.py"), "failures.window");
    // Spark's largest numbers, and its word for failures that always count.
    JsonNode failures = call(Map.of(), "--conf", "spark.executor.maxNumFailures=2147483646", "--conf",
        "spark.executor.failuresValidityInterval=-1", "app.py").configuration().orElseThrow().path("failures");
    Check.same(failures.toString(), "{\"app\":2147483646,\"window\":\"1000d\"}");
    for (String bad : List.of("executor.maxNumFailures=2147483648", "executor.maxNumFailures=-1",
        "kubernetes.allocation.executor.timeout=-1")) {
      Check.fails(() -> call(Map.of(), "--conf", "spark." + bad, "app.py"), "spark." + bad.replace("=", " is "));
    }
    // This is Spark's word for none.
    JsonNode none = call(Map.of(), "--conf", "spark.executor.maxNumFailures=2147483647", "app.py").configuration().orElseThrow();
    assert none.path("failures").isMissingNode() : none;
  }

  private static void cluster() throws Exception {
    Path app = Files.createTempFile("app", ".py");
    String driver = "spark.kubernetes.driver.";
    Submit.Call call = call(Map.of(), "--deploy-mode", "cluster", "--master", "k8s://https://x", "--driver-memory", "1g",
        "--conf", "spark.kubernetes.container.image=i:1", "--conf", "spark.posse.image=posse:1",
        "--conf", driver + "label.team=t", "--conf", driver + "annotation.a/b=c", "--conf", driver + "node.selector.zone=z",
        "--conf", driver + "secrets.s=/s", "--conf", "spark.kubernetes.driverEnv.A=b", "--conf", driver + "secretKeyRef.P=s:k",
        "--conf", driver + "volumes.emptyDir.e.mount.path=/e", "--conf", "spark.x=it's", "--py-files", app + ",local:///x.zip",
        app.toString(), "a b");
    JsonNode made = call.configuration().orElseThrow().path("driver");
    String name = app.getFileName().toString();
    Files.delete(app);
    Check.same(made.path("image").asText(), "i:1");
    Check.same(made.path("posse_image").asText(), "posse:1");
    JsonNode pod = made.path("pod");
    Check.same(pod.at("/metadata/labels").toString(), "{\"spark-role\":\"driver\",\"spark-app-name\":\"" + name.toLowerCase(Locale.ROOT).replace(".", "-") + "\",\"team\":\"t\"}");
    Check.same(pod.at("/metadata/annotations").toString(), "{\"a/b\":\"c\"}");
    Check.same(pod.at("/spec/nodeSelector").toString(), "{\"zone\":\"z\"}");
    Check.same(pod.at("/spec/volumes").toString(), "[{\"name\":\"s-volume\",\"secret\":{\"secretName\":\"s\"}}]");
    Check.same(pod.at("/spec/containers/0/volumeMounts").toString(), "[{\"name\":\"s-volume\",\"mountPath\":\"/s\"}]");
    Check.same(pod.at("/spec/containers/0/resources/limits").toString(), "{\"memory\":\"1433Mi\"}");
    Check.same(made.path("env").size(), 2);
    String command = made.at("/command/2").asText();
    assert command.startsWith("dir=$(mktemp -d) && cd \"$dir\" && exec env POSSE_SPARK_IMAGE='i:1' POSSE_SPARK_JAR=\"$POSSE_FILES_DIR\"/'posse-spark.jar' sh \"$POSSE_FILES_DIR\"/'posse-spark-submit' '--driver-memory' '1g'") : command;
    assert command.contains(" '--py-files' \"$POSSE_FILES_DIR\"/'" + name + "''','local:///x.zip' ")
        || command.contains(" '--py-files' \"$POSSE_FILES_DIR\"/'" + name + "'''," + "'local:///x.zip' ") : command;
    assert command.contains(" --conf 'spark.x=it'\\''s' ") && !command.contains("spark.master") : command;
    assert command.endsWith(" \"$POSSE_FILES_DIR\"/'" + name + "''' 'a b'") : command;
    Check.same(call.words().subList(0, 6),
        List.of("/bin/posse", "submit", "-f", "/dev/fd/3", "--create-rbac", "--logs"));
    assert call.words().contains(app.toString()) && call.words().contains("/b/posse-spark.jar") : call.words();
    Check.same(call.told(), List.of("no effect with posse: " + driver
        + "volumes.emptyDir.e.mount.path (spark.kubernetes.driver.podTemplateFile has what it says)"));
    Check.fails(() -> call(Map.of(), "--deploy-mode", "cluster", "local:///app.py"), "set spark.kubernetes.container.image");
  }

  private static final String IMAGE = "spark.kubernetes.container.image=i:1";

  private static Submit.Call cluster(String... words) {
    List<String> all = Stream.concat(Stream.of("--deploy-mode", "cluster", "--conf", IMAGE), Stream.of(words)).toList();
    return new Submit(Map.of(), PLACE, all).call();
  }

  private static JsonNode driver(Submit.Call call) {
    return call.configuration().orElseThrow().path("driver");
  }

  private static String command(Submit.Call call) {
    return driver(call).at("/command/2").asText();
  }

  /** Spark's variables. The id of the application comes after its pod. */
  private static void variables() {
    String driver = "spark.kubernetes.driver.";
    String version = org.apache.spark.package$.MODULE$.SPARK_VERSION();
    Submit.Call call = cluster("--conf", "spark.kubernetes.container.image=i:{{SPARK_VERSION}}-a", "--conf",
        driver + "label.a=x-{{APP_ID}}", "--conf", driver + "annotation.b={{EXECUTOR_ID}}", "--conf",
        driver + "annotation.c={{ with secret }}", "--conf", "spark.kubernetes.driverEnv.D={{APP_ID}}", "local:///app.py");
    Check.same(driver(call).path("image").asText(), "i:" + version + "-a");
    JsonNode metadata = driver(call).at("/pod/metadata");
    assert metadata.at("/labels/a").isMissingNode() && !command(call).contains("x-{{") : metadata + command(call);
    Check.same(metadata.path("annotations").toString(), "{\"c\":\"{{ with secret }}\"}");
    Check.same(driver(call).at("/env/0/value").asText(), "{{APP_ID}}");
    for (String key : List.of("label.a (", "annotation.b (")) {
      assert String.join(" ", call.told()).contains(driver + key + "the pod is there before") : call.told();
    }
  }

  /** The pod is the Job's, and an application runs once, as Spark's does. */
  private static void podOfJob() {
    Submit.Call call = cluster("--conf", "spark.kubernetes.driver.pod.name=mine", "--conf", "spark.driver.host=10.1.2.3",
        "--conf", "spark.driver.bindAddress=10.1.2.3", "local:///app.py");
    for (String word : List.of("=mine", "10.1.2.3")) {
      assert !command(call).contains(word) : word + " in " + command(call);
    }
    for (String key : List.of("spark.kubernetes.driver.pod.name (", "spark.driver.host (", "spark.driver.bindAddress (")) {
      assert String.join(" ", call.told()).contains(key) : key + " in " + call.told();
    }
    Check.same(driver(call).path("retries").toString(), "0");
    call = cluster("--conf", "spark.posse.driver.retries=2", "local:///app.py");
    Check.same(driver(call).path("retries").toString(), "2");
    Check.same(driver(call).at("/pod/spec/containers/0/ports").toString(), "[{\"name\":\"spark-ui\",\"containerPort\":4040}]");
    call = cluster("--conf", "spark.ui.port=5050", "local:///app.py");
    Check.same(driver(call).at("/pod/spec/containers/0/ports/0/containerPort").asInt(), 5050);
    // Any free one.
    call = cluster("--conf", "spark.ui.port=0", "local:///app.py");
    Check.same(driver(call).at("/pod/spec/containers/0/ports").size(), 0);
  }

  /** As Spark's cluster mode computes it, for the driver and for executors. */
  private static void memory() {
    String minimum = "spark.driver.minMemoryOverhead=1g";
    String factor = "spark.kubernetes.memoryOverheadFactor=";
    for (String[] row : new String[][] {{"app.jar", "spark.x=y", "1408Mi", ""}, {"app.py", "spark.x=y", "1433Mi", factor + "0.4"},
        {"app.jar", minimum, "2048Mi", ""}, {"app.py", factor + "0.6", "1638Mi", factor + "0.6"},
        {"app.py", "spark.driver.memoryOverheadFactor=0.6", "1638Mi", factor + "0.4"}}) {
      Submit.Call call = cluster("--conf", row[1], "local:///" + row[0]);
      Check.same(driver(call).at("/pod/spec/containers/0/resources/limits/memory").asText(), row[2]);
      assert row[3].isEmpty() ? !command(call).contains(factor) : command(call).contains(" '" + row[3] + "'") : command(call);
      assert command(call).split(factor, -1).length <= 2 : command(call);
    }
    String gpu = "spark.driver.resource.gpu.";
    JsonNode limits = driver(cluster("--conf", gpu + "amount=2", "--conf", gpu + "vendor=nvidia.com", "local:///app.jar"))
        .at("/pod/spec/containers/0/resources/limits");
    Check.same(limits.path("nvidia.com/gpu").asText(), "2");
    assert command(cluster("--verbose", "local:///app.jar")).contains(" '--verbose' ");
    for (String key : List.of("spark.ui.port", "spark.driver.memory", "spark.driver.memoryOverhead",
        "spark.driver.memoryOverheadFactor", "spark.kubernetes.memoryOverheadFactor", "spark.driver.minMemoryOverhead")) {
      Check.fails(() -> cluster("--conf", key + "=abc", "local:///app.jar"), key + " is abc: ");
    }
    Check.fails(() -> cluster("--conf", gpu + "amount=2", "local:///app.jar"), gpu + "amount is 2", "set " + gpu + "vendor");
  }

  /** Keys that Spark reads in steps which do not run here. */
  private static void noEffect() {
    String[] keys = {"spark.kubernetes.hadoop.configMapName", "spark.kubernetes.kerberos.krb5.path",
        "spark.kubernetes.kerberos.krb5.configMapName", "spark.kubernetes.kerberos.tokenSecret.name",
        "spark.kubernetes.authenticate.submission.oauthToken", "spark.kubernetes.authenticate.driver.oauthToken",
        "spark.kubernetes.authenticate.oauthToken", "spark.kubernetes.submission.connectionTimeout", "spark.kubernetes.submission.requestTimeout",
        "spark.kubernetes.driver.pod.name"};
    List<String> words = Stream.concat(Stream.of(keys).flatMap(key -> Stream.of("--conf", key + "=x")),
        Stream.of("--conf", "spark.kubernetes.authenticate.driver.serviceAccountName=a", "--queue", "prod", "local:///app.py")).toList();
    Submit.Call without = cluster(words.toArray(String[]::new));
    String told = String.join(" ", without.told());
    String explained = explained(Stream.concat(Stream.of("--deploy-mode", "cluster"), words.stream()).toArray(String[]::new));
    for (String key : keys) {
      assert told.contains(key + " (") : key + " in " + told;
      assert !command(without).contains(key + "=") : key + " in " + command(without);
      assert explained.lines().anyMatch(line -> line.matches(java.util.regex.Pattern.quote(key) + "=\\S+ +-> nothing: .*")) : key;
    }
    assert !told.contains("serviceAccountName") : told;
    assert explained.contains("spark.yarn.queue=prod") : explained;
    // Spark's driver reads these, unlike the others of its pod.
    for (String key : List.of("driver.connectionTimeout=7", "driver.requestTimeout=7", "driver.annotateExitException=true",
        "authenticate.oauthTokenFile=/t")) {
      Submit.Call with = cluster("--conf", "spark.kubernetes." + key, "local:///app.py");
      assert command(with).contains("spark.kubernetes." + key) && with.told().isEmpty() : command(with) + with.told();
    }
    // There is no posse.yaml in this mode.
    assert !told.contains("posse.yaml") && !explained.contains("posse.yaml") : told + explained;
    Submit.Call call = new Submit(Map.of("HADOOP_CONF_DIR", "/etc/hadoop"), PLACE,
        List.of("--deploy-mode", "cluster", "--conf", IMAGE, "local:///app.py")).call();
    assert String.join(" ", call.told()).contains("HADOOP_CONF_DIR") : call.told();
  }

  /** What Spark brings along comes along, and the driver finds it by its name in its working directory. */
  private static void filesOfMachine() throws Exception {
    Path folder = Files.createTempDirectory("files");
    Path pod = Files.writeString(folder.resolve("pod.yaml"), "{spec: {containers: [{name: main}]}}");
    Path key = Files.writeString(folder.resolve("my.keytab"), "k");
    String executors = "spark.kubernetes.executor.podTemplateFile=";
    // It is read before Hadoop works, so it is never uploaded.
    Submit.Call call = cluster("--conf", executors + pod, "--keytab", key.toString(), "--conf",
        "spark.kubernetes.file.upload.path=nowhere://x", "--conf", "spark.kubernetes.driver.podTemplateFile=file://" + pod,
        "local:///app.py");
    assert command(call).contains("'" + executors + "'\"$POSSE_FILES_DIR\"/'pod.yaml'") : command(call);
    assert command(call).contains(" '--keytab' \"$POSSE_FILES_DIR\"/'my.keytab'") : command(call);
    assert call.words().containsAll(List.of(pod.toString(), key.toString())) : call.words();
    Check.same(driver(call).at("/pod/spec/containers/0/name").asText(), "main");
    // To Spark this is a file of this machine, too.
    call = cluster("--conf", "spark.kubernetes.driver.podTemplateFile=local://" + pod, "local:///app.py");
    Check.same(driver(call).at("/pod/spec/containers/0/name").asText(), "main");
    // Nothing to find in a folder.
    assert command(call).startsWith("exec env ") && !command(call).contains("submitInDriver") : command(call);
    for (String[] words : new String[][] {{"--files", key.toString()}, {"--conf", "spark.archives=local:///e.tgz#e"}}) {
      call = cluster(words[0], words[1], "local:///app.py");
      assert command(call).startsWith("dir=$(mktemp -d) && cd \"$dir\" && exec env ") : command(call);
      assert command(call).contains(" --conf 'spark.kubernetes.submitInDriver=true' ") : command(call);
    }
  }

  /** Files are named once, and are there. */
  private static void named() throws Exception {
    Path folder = Files.createTempDirectory("named");
    Path jar = Files.writeString(folder.resolve("x.jar"), "x");
    Files.writeString(folder.resolve("y.jar"), "y");
    Path other = Files.writeString(Files.createDirectory(folder.resolve("b")).resolve("x.jar"), "z");
    Path app = Files.writeString(folder.resolve("my app.py"), "");
    String dir = "\"$POSSE_FILES_DIR\"/";
    Submit.Call call = cluster("--jars", jar.toString(), "--conf", "spark.jars=" + folder + "/b/../x.jar", "local:///app.jar");
    Check.same(call.words().stream().filter(word -> word.endsWith("x.jar")).count(), 1L);
    call = cluster("--jars", folder + "/*.jar", "local:///app.jar");
    assert command(call).contains(" '--jars' " + dir + "'x.jar'''," + dir + "'y.jar''' ") : command(call);
    // As scripts give them: "$JARS", "$A,$B".
    String none = "exec env POSSE_SPARK_IMAGE='i:1' ";
    for (String[] row : new String[][] {{"--jars", "", none, " '--jars' '' "}, {"--files", " , ", none, " '--files' ' , ' "},
        {"--conf", "spark.jars=", none, " --conf 'spark.jars=' "}, {"--keytab", "", none, " '--keytab' '' "},
        {"--py-files", "," + jar, "dir=$(", " '--py-files' " + dir + "'x.jar''' "},
        {"--conf", "spark.archives=," + jar + "#x,,", "dir=$(", " --conf 'spark.archives='" + dir + "'x.jar''#x' "}}) {
      String text = command(cluster(row[0], row[1], "local:///app.jar"));
      assert text.startsWith(row[2]) && text.contains(row[3]) : row[1] + ": " + text;
    }
    Check.fails(() -> cluster(""), "there is no application");
    String upload = "spark.kubernetes.file.upload.path";
    Check.fails(() -> cluster("--jars", jar + "," + other, "local:///app.jar"), jar + " and " + other + " have one name", upload);
    Check.fails(() -> cluster(app.toString()), app.toString(), upload);
    // What never goes there has another remedy, and so has what is too large all the same.
    Path large = Files.write(folder.resolve("large"), new byte[900_000]);
    for (Object[] row : new Object[][] {{app, ": rename it\n"}, {large, " come along: put them into the image and"}}) {
      String text = explained("--deploy-mode", "cluster", "--conf", IMAGE, "--conf", upload + "=/tmp", "--keytab",
          row[0].toString(), "local:///app.jar");
      assert java.util.regex.Pattern.compile("refused: .*" + row[0] + ".*" + row[1]).matcher(text).find() : text;
    }
    for (String absent : List.of("nosuch.py", folder + "/nosuch.jar", "file:///nosuch.py", folder + "/nosuch*.jar", folder.toString(),
        "x[")) {
      Check.fails(() -> cluster("--files", absent, "local:///app.py"), absent + " is no file of this machine", "local:///");
      Check.fails(() -> cluster(absent), absent + " is no file of this machine");
    }
    Check.fails(() -> cluster("--conf", "spark.kubernetes.executor.podTemplateFile=/nosuch.yaml", "local:///app.py"), "/nosuch.yaml");
    // Spark's word for an application on the class path.
    assert command(cluster("--class", "A", "spark-internal", "a")).endsWith(" 'spark-internal' 'a'");
  }

  /** spark-app-name is what Spark itself makes of the name. */
  private static void names() {
    for (String name : List.of("a", " My App: v1.2 -- x ", "--a--", "Ü", "a_b", "x".repeat(62) + "  y")) {
      Submit.Call call = call(Map.of(), "--deploy-mode", "cluster", "--name", name, "--conf", "spark.kubernetes.container.image=i:1",
          "local:///app.py");
      Check.same(call.configuration().orElseThrow().at("/driver/pod/metadata/labels/spark-app-name").asText(),
          KubernetesConf$.MODULE$.getAppNameLabel(name));
    }
  }

  /** A jar that is too large comes by the upload path, as with Spark. */
  private static void upload() throws Exception {
    Path from = Files.createTempDirectory("from");
    Path jar = Files.write(from.resolve("app.jar"), new byte[900_000]);
    Path small = Files.writeString(from.resolve("a.txt"), "a");
    Path other = Files.writeString(from.resolve("b.txt"), "b");
    List<String> words = List.of("--deploy-mode", "cluster", "--conf", "spark.kubernetes.container.image=i:1", "--files",
        small + "#alias,local:///x", "--conf", "spark.jars=" + other + ",s3a://b/y.jar", jar.toString(), "arg");
    Check.fails(() -> new Submit(Map.of(), PLACE, words).call(), "900002 bytes", "set spark.kubernetes.file.upload.path",
        "local:///");
    for (String prefix : List.of("file://", "")) {
      Path to = Files.createTempDirectory("to");
      List<String> all = Stream.concat(Stream.of("--conf", "spark.kubernetes.file.upload.path=" + prefix + to), words.stream()).toList();
      // Nothing is copied where nothing is started.
      new Submit(Map.of(), PLACE, all).explain();
      Check.same(Files.list(to).count(), 0L);
      Submit.Call call = new Submit(Map.of(), PLACE, all).call();
      String command = call.configuration().orElseThrow().at("/driver/command/2").asText();
      String upload = "'" + java.util.regex.Pattern.quote(prefix + to) + "/spark-upload-[-0-9a-f]{36}/";
      for (String want : List.of("'--files' " + upload + "a.txt#alias','local:///x' ",
          " --conf 'spark.jars='" + upload + "b.txt','s3a://b/y.jar' ", " " + upload + "app.jar' 'arg'$")) {
        assert java.util.regex.Pattern.compile(want).matcher(command).find() : want + " in " + command;
      }
      Check.same(call.words().subList(call.words().indexOf("--file"), call.words().size()),
          List.of("--file", "/b/posse-spark-submit", "--file", "/b/posse-spark.jar"));
      try (Stream<Path> copied = Files.walk(to)) {
        Check.same(copied.filter(path -> path.endsWith("app.jar")).map(path -> path.toFile().length()).toList(), List.of(900_000L));
      }
    }
    Check.fails(() -> call(Map.of(), "--deploy-mode", "cluster", "--conf", "spark.kubernetes.container.image=i:1", "--conf",
        "spark.kubernetes.file.upload.path=nowhere://x", jar.toString()), "cannot be copied", "nowhere://x", "SPARK_DIST_CLASSPATH");
  }

  private static void refused() {
    Check.fails(() -> call(Map.of(), "--master", "yarn", "app.py"), "--master is yarn", "k8s://URL", "--explain");
    Check.fails(() -> call(Map.of(), "--master", "local[2]", "app.py"), "--master is local[2]", "k8s://URL");
    Check.fails(() -> call(Map.of(), "--dev", "--deploy-mode", "cluster", "app.py"), "leave out --deploy-mode cluster");
    Check.fails(() -> call(INSIDE, "--dev", "app.py"), "without posse run");
    Check.fails(() -> call(Map.of(), "--dev"), "there is no application");
    Check.fails(() -> call(Map.of(), "--dev", "--nonsense", "app.py"), "--nonsense");
    // It is Spark that tells its options.
    Check.same(call(Map.of(), "--dev", "--help").words(), List.of("/spark/bin/spark-submit", "--help"));
  }

  private static void eventLog() throws Exception {
    Path folder = Files.createTempDirectory("events");
    String dir = "spark.eventLog.dir=";
    call(INSIDE, "--conf", "spark.eventLog.enabled=true", "--conf", dir + "file://" + folder, "app.py");
    call(INSIDE, "--conf", "spark.eventLog.enabled=true", "--conf", dir + "s3a://bucket/x", "app.py");
    call(INSIDE, "--conf", dir + "/nowhere", "app.py");
    Check.fails(() -> call(INSIDE, "--conf", "spark.eventLog.enabled=true", "--conf", dir + "/nowhere", "app.py"),
        "spark.eventLog.dir is /nowhere");
    Files.delete(folder);
  }

  private static String explained(String... words) {
    return new Submit(Map.of(), PLACE, List.of(words)).explain();
  }

  private static void explain() {
    String upload = "spark.kubernetes.file.upload.path=s3a://b/u";
    String label = "spark.kubernetes.driver.label.a=b";
    String volume = "spark.kubernetes.driver.volumes.emptyDir.e.mount.path=/e";
    String client = explained("--conf", upload, "--conf", label, "--conf", "spark.yarn.queue=q", "--conf", "spark.yarn.x=y",
        "--conf", "spark.plugins=org.apache.spark.scheduler.cluster.k8s.ExecutorPVCResizePlugin", "--master", "yarn", "app.py");
    String cluster = explained("--deploy-mode", "cluster", "--conf", upload, "--conf", label, "--conf", volume, "--conf",
        "spark.driver.memory=2g", "--conf", "spark.kubernetes.submission.waitAppCompletion=false", "app.py");
    for (String[] row : new String[][] {{client, upload + " +-> nothing in client mode"}, {client, label + " +-> nothing in client"},
        {client, "spark.master=yarn +-> refused: .*k8s://URL"}, {client, "spark.yarn.queue=q +-> nothing: .*SHARED_CLUSTERS"},
        {client, "spark.yarn.x=y +-> nothing: only YARN"}, {client, "spark.plugins=.* -> nothing: .*sizeLimit"},
        {cluster, upload + " +-> files of this machine are copied there"}, {cluster, label + " +-> the driver's pod"},
        {cluster, volume + " +-> nothing: .*podTemplateFile"}, {cluster, "spark.driver.memory=2g +-> the driver's pod, and"},
        {cluster, "waitAppCompletion=false +-> posse submit"}, {cluster, "refused: there is no image"}}) {
      assert java.util.regex.Pattern.compile(row[1]).matcher(row[0]).find() : row[1] + " in " + row[0];
    }
    Check.same(call(INSIDE, "--conf", "spark.yarn.queue=q", "app.py").told(), List.of("no effect with posse: spark.yarn.queue ("
        + Keys.other("spark.yarn.queue", "q").orElseThrow() + ")"));
    String text = new Submit(Map.of(), PLACE, List.of("--explain", "--conf", "spark.executor.maxNumFailures=7",
        "--conf", "spark.kubernetes.executor.label.a=b")).explain();
    for (String want : List.of("spark.executor.maxNumFailures=7 +-> failures.app: 7",
        "spark.executor.failuresValidityInterval +-> failures.window\n", "spark.kubernetes.allocation.batch.delay +-> nothing: ",
        "spark.kubernetes.executor.label.a=b +-> unchanged")) {
      assert java.util.regex.Pattern.compile(want).matcher(text).find() : want + " in " + text;
    }
  }

  /** What is shown is pasted elsewhere, so it has no secrets: those that Spark does not show either. */
  private static void redacted() {
    String[] secrets = {"spark.kubernetes.authenticate.submission.oauthToken=hidden", "spark.kubernetes.driverEnv.DB_PASSWORD=hidden",
        "spark.kubernetes.driver.annotation.a=token:hidden", "spark.kubernetes.executor.annotation.access.key=hidden",
        "spark.kubernetes.driver.secretKeyRef.PASSWORD=hidden"};
    List<String> words = Stream.of(secrets).flatMap(one -> Stream.of("--conf", one)).toList();
    for (String mode : List.of("client", "cluster")) {
      String text = explained(Stream.concat(Stream.of("--deploy-mode", mode), words.stream()).toArray(String[]::new));
      assert !text.contains("hidden") && text.contains("DB_PASSWORD=*********(redacted) ") : text;
    }
    String mine = explained("--conf", "spark.redaction.regex=mine", "--conf", "spark.kubernetes.driverEnv.mine=hidden");
    assert !mine.contains("hidden") : mine;
    String sparks = org.apache.spark.internal.config.package$.MODULE$.SECRET_REDACTION_PATTERN().defaultValueString();
    assert Submit.SECRET.startsWith(sparks) : sparks;
  }

  private static void versions() {
    for (String good : List.of("3.5.0", "4.0.5", "4.3.0-SNAPSHOT", "10.1.0", "mine")) {
      Shims.check(good);
    }
    for (String bad : List.of("3.4.4", "2.4.8")) {
      Check.fails(() -> {
        Shims.check(bad);
        return null;
      }, "this is Spark " + bad, "3.5 or later");
    }
  }
}
