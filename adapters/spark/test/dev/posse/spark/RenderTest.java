package dev.posse.spark;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import io.fabric8.kubernetes.client.ConfigBuilder;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;

import org.apache.spark.SecurityManager;
import org.apache.spark.SecurityManager$;
import org.apache.spark.SparkConf;
import org.apache.spark.resource.ResourceProfile$;
import org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBuilder;

import scala.Option;

/** Spark's keys for the executors' pods are in posse's template, as this Spark builds it. README.md names each of them. */
final class RenderTest {
  private static final String KEY = "spark.kubernetes.executor.";
  private static final String VOLUME = KEY + "volumes.";

  /** A key with its value, and what must be where in the template. */
  private record Row(String key, String value, String at, String want) {}

  private static final String MAIN = "/spec/containers/0";

  private static final List<Row> ROWS = List.of(
      new Row("spark.kubernetes.container.image", "i:1", MAIN + "/image", "i:1"),
      new Row(KEY + "container.image", "i:2", MAIN + "/image", "i:2"),
      new Row("spark.kubernetes.container.image.pullPolicy", "Always", MAIN + "/imagePullPolicy", "Always"),
      new Row("spark.kubernetes.container.image.pullSecrets", "s1", "/spec/imagePullSecrets/0/name", "s1"),
      new Row(KEY + "label.team", "t", "/metadata/labels/team", "t"),
      new Row(KEY + "annotation.example.com/a", "x", "/metadata/annotations/example.com~1a", "x"),
      new Row("spark.kubernetes.node.selector.zone", "a", "/spec/nodeSelector/zone", "a"),
      new Row(KEY + "node.selector.disk", "ssd", "/spec/nodeSelector/disk", "ssd"),
      new Row(KEY + "scheduler.name", "mine", "/spec/schedulerName", "mine"),
      new Row(KEY + "request.cores", "200m", MAIN + "/resources/requests/cpu", "200m"),
      new Row(KEY + "limit.cores", "2", MAIN + "/resources/limits/cpu", "2"),
      new Row("spark.executor.memory", "600m", MAIN + "/resources/requests/memory", "984Mi"),
      new Row("spark.executorEnv.NAME", "v", MAIN + "/env/*/value", "v"),
      new Row(KEY + "secretKeyRef.PASSWORD", "s2:k", MAIN + "/env/*/valueFrom/secretKeyRef/key", "k"),
      new Row(KEY + "secrets.s3", "/etc/s3", MAIN + "/volumeMounts/*/mountPath", "/etc/s3"),
      new Row(KEY + "deleteOnTermination", "false", "/spec/restartPolicy", "Never"),
      new Row("spark.kubernetes.authenticate.executor.serviceAccountName", "a1", "/spec/serviceAccountName", "a1"),
      new Row(VOLUME + "hostPath.h.mount.path", "/h", MAIN + "/volumeMounts/*/mountPath", "/h"),
      new Row(VOLUME + "hostPath.h.options.path", "/on-node", "/spec/volumes/*/hostPath/path", "/on-node"),
      new Row(VOLUME + "emptyDir.e.mount.path", "/e", MAIN + "/volumeMounts/*/mountPath", "/e"),
      new Row(VOLUME + "emptyDir.e.options.sizeLimit", "1Gi", "/spec/volumes/*/emptyDir/sizeLimit", "1Gi"),
      new Row(VOLUME + "nfs.n.mount.path", "/n", MAIN + "/volumeMounts/*/mountPath", "/n"),
      new Row(VOLUME + "nfs.n.options.server", "server", "/spec/volumes/*/nfs/server", "server"),
      new Row(VOLUME + "nfs.n.options.path", "/export", "/spec/volumes/*/nfs/path", "/export"),
      new Row(VOLUME + "persistentVolumeClaim.c.mount.path", "/c", MAIN + "/volumeMounts/*/mountPath", "/c"),
      new Row(VOLUME + "persistentVolumeClaim.c.options.claimName", "data",
          "/spec/volumes/*/persistentVolumeClaim/claimName", "data"),
      new Row(KEY + "podTemplateContainerName", "mine", MAIN + "/name", "mine"),
      // What has no key of its own comes by the template.
      new Row(KEY + "podTemplateFile", "", "/spec/tolerations/*/key", "spot"));

  private RenderTest() {}

  static void all() throws Exception {
    SparkConf conf = new SparkConf(false).set("spark.app.name", "render").set("spark.master", "k8s://https://127.0.0.1:1");
    Path template = Files.createTempFile("posse", ".yaml");
    Files.writeString(template, "apiVersion: v1\nkind: Pod\nspec:\n  tolerations: [{key: spot, operator: Exists}]\n"
        + "  containers: [{name: mine}]\n");
    ROWS.forEach(row -> conf.set(row.key, row.value.isEmpty() ? template.toString() : row.value));
    conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.port", "1").set("spark.executor.cores", "4")
        .set("spark.kubernetes.executor.podNamePrefix", "render");
    ObjectNode group = render(conf);
    Files.delete(template);
    for (Row row : ROWS) {
      // A later row sets another image.
      if (row.value.equals("i:1")) {
        continue;
      }
      List<String> found = at(group.path("template"), row.at).map(JsonNode::asText).toList();
      assert found.contains(row.want) : row + ": " + found + " in " + group;
    }
    Check.same(group.path("container").asText(), "mine");
    recovery(conf.clone());
    documented();
  }

  /** After an OOM executors take one task at a time, and keep their cores. */
  private static void recovery(SparkConf conf) {
    conf.remove("spark.kubernetes.executor.podTemplateFile");
    for (String is : List.of("", "true", "false")) {
      if (!is.isEmpty()) {
        conf.set(PosseAllocator.RECOVERY, is);
      }
      boolean isOne = is.equals("true") && Shims.isSince(org.apache.spark.package$.MODULE$.SPARK_VERSION(), 4, 2);
      for (JsonNode variable : render(conf).path("template").at(MAIN + "/env")) {
        if (variable.path("name").asText().equals("SPARK_EXECUTOR_CORES")) {
          Check.same(variable.path("value").asText(), isOne ? "1" : "4");
        }
      }
    }
  }

  private static ObjectNode render(SparkConf conf) {
    SecurityManager security = new SecurityManager(conf, Option.empty(), SecurityManager$.MODULE$.$lessinit$greater$default$3());
    // Nobody answers there, and nobody is asked.
    try (KubernetesClient client = new KubernetesClientBuilder()
        .withConfig(new ConfigBuilder().withMasterUrl("https://127.0.0.1:1").build()).build()) {
      return PosseAllocator.render(conf, security, new KubernetesExecutorBuilder(), client, "spark-1", Option.empty(),
          ResourceProfile$.MODULE$.getOrCreateDefaultProfile(conf));
    }
  }

  /** The values at a path, in which `*` is each entry of a list. */
  private static Stream<JsonNode> at(JsonNode node, String path) {
    int star = path.indexOf("/*");
    if (star < 0) {
      return Stream.of(node.at(path));
    }
    Stream.Builder<JsonNode> each = Stream.builder();
    node.at(path.substring(0, star)).forEach(each);
    return each.build().flatMap(one -> at(one, path.substring(star + 2)));
  }

  private static void documented() throws IOException {
    String readme = Files.readString(Path.of(System.getProperty("posse.readme")));
    // README has NAME for what somebody chooses.
    String chosen = "(?<=label\\.|annotation\\.|selector\\.|secretKeyRef\\.|secrets\\.)[^`]+$";
    for (Row row : ROWS) {
      String key = row.key.replaceAll(chosen, "NAME").replaceAll("(volumes\\.[A-Za-z]+\\.)[a-z]+\\..*", "$1NAME");
      assert readme.contains("`" + key) : key + " is not in README.md";
    }
    for (Keys.Key key : Keys.ALL) {
      assert readme.contains("| `" + key.name() + "` |") : key.name() + " is not in README.md";
    }
  }
}
