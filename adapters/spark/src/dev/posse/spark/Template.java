package dev.posse.spark;

import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.fasterxml.jackson.databind.node.TextNode;

import io.fabric8.kubernetes.api.model.HasMetadata;
import io.fabric8.kubernetes.api.model.PersistentVolumeClaim;
import io.fabric8.kubernetes.api.model.Pod;
import io.fabric8.kubernetes.client.utils.Serialization;

/** Turns the pod that Spark builds for one executor into a template for all executors. */
final class Template {
  /**
   * The id for which Spark builds the pod. Spark's ids are numbers, and this one occurs nowhere else.
   * Digits stay unchanged in host names.
   */
  static final String ID = "7205759403792793601";

  /** The labels by which Spark's poll finds its executors. */
  private static final List<String> LABELS =
      List.of("spark-app-selector", "spark-role", "spark-exec-id", "spark-exec-resourceprofile-id");
  /** posse's placeholders. Spark has already replaced its own. */
  private static final Pattern WORD = Pattern.compile("\\{\\{[A-Z_]+\\}\\}");

  private Template() {}

  /**
   * @param pod the whole pod
   * @param resources other objects that Spark's allocator would create
   * @throws IllegalArgumentException if posse cannot use the pod; the message is for the driver's log
   */
  static ObjectNode of(Pod pod, List<HasMetadata> resources) {
    ObjectNode template = json(pod);
    ObjectNode metadata = template.withObject("/metadata");
    for (String label : LABELS) {
      if (!metadata.path("labels").has(label)) {
        throw new IllegalArgumentException(
            "the executor pod that Spark built has no label " + label + ", by which Spark finds it again: is"
                + " BasicExecutorFeatureStep in spark.kubernetes.executor.pod.excludedFeatureSteps?");
      }
    }
    // posse sets the name, and the driver's pod as the owner.
    metadata.remove(List.of("name", "namespace", "ownerReferences"));
    template.remove("status");
    for (HasMetadata resource : resources) {
      if (!(resource instanceof PersistentVolumeClaim)) {
        throw new IllegalArgumentException(
            "a step of spark.kubernetes.executor.pod.featureSteps wants a " + resource.getKind() + " beside each"
                + " executor; posse creates pods alone: create " + resource.getMetadata().getName() + " beforehand");
      }
      asEphemeral(template, json(resource));
    }
    fillIn(template);
    return template;
  }

  private static ObjectNode json(HasMetadata object) {
    try {
      return (ObjectNode) Control.JSON.readTree(Serialization.asJson(object));
    } catch (JsonProcessingException e) {
      throw new IllegalArgumentException("what Spark built cannot be written as JSON: " + e.getMessage(), e);
    }
  }

  /** Turns a claim into an ephemeral volume, which Kubernetes creates and deletes with the pod. */
  private static void asEphemeral(ObjectNode pod, JsonNode claim) {
    for (JsonNode volume : pod.path("spec").path("volumes")) {
      JsonNode name = volume.path("persistentVolumeClaim").path("claimName");
      if (!name.asText().equals(claim.path("metadata").path("name").asText())) {
        continue;
      }
      ObjectNode changed = (ObjectNode) volume;
      changed.remove("persistentVolumeClaim");
      ObjectNode template = changed.putObject("ephemeral").putObject("volumeClaimTemplate");
      ObjectNode metadata = template.putObject("metadata");
      for (String part : List.of("labels", "annotations")) {
        if (claim.path("metadata").path(part).size() > 0) {
          metadata.set(part, claim.path("metadata").path(part));
        }
      }
      template.set("spec", claim.path("spec"));
    }
  }

  /** Replaces the id by posse's placeholder, and escapes text that only looks like a placeholder. */
  private static void fillIn(JsonNode node) {
    if (node instanceof ObjectNode object) {
      for (Map.Entry<String, JsonNode> field : List.copyOf(object.properties())) {
        if (field.getValue().isTextual()) {
          object.set(field.getKey(), text(field.getValue().asText()));
        }
        fillIn(field.getValue());
      }
    } else if (node instanceof ArrayNode array) {
      for (int i = 0; i < array.size(); i++) {
        if (array.get(i).isTextual()) {
          array.set(i, text(array.get(i).asText()));
        }
        fillIn(array.get(i));
      }
    }
  }

  private static TextNode text(String text) {
    String quoted = WORD.matcher(text).replaceAll("{{$0}}");
    return TextNode.valueOf(quoted.replace(ID, "{{EXECUTOR_ID}}"));
  }
}
