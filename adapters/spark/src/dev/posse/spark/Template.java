package dev.posse.spark;

import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import java.util.regex.Pattern;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.fasterxml.jackson.databind.node.TextNode;

import io.fabric8.kubernetes.api.model.Container;
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
  /** How many digits of an application's hash are in the names of its volumes. */
  private static final int APP_DIGITS = 12;
  /** posse's placeholders. Spark has already replaced its own. */
  private static final Pattern WORD = Pattern.compile("\\{\\{[A-Z_]+\\}\\}");

  private Template() {}

  /** The image of Spark's container in a group's body. */
  static String image(ObjectNode group) {
    for (JsonNode container : group.at("/template/spec/containers")) {
      if (container.path("name").equals(group.path("container"))) {
        return container.path("image").asText();
      }
    }
    return "";
  }

  /**
   * The parts `template` and `volumes_per_slot` of a group.
   *
   * @param pod the pod without Spark's container
   * @param container Spark's container
   * @param resources other objects that Spark's allocator would create
   * @param reusedBy the application whose executors reuse the claims of earlier ones; empty: each claim ends with its
   *     executor
   * @throws IllegalArgumentException if posse cannot use the pod; the message is for the driver's log
   */
  static ObjectNode group(Pod pod, Container container, List<HasMetadata> resources, Optional<String> reusedBy) {
    ObjectNode group = Control.JSON.createObjectNode();
    ObjectNode template = json(pod);
    template.withObject("/spec").withArray("containers").add(json(container));
    group.set("template", template);
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
      ObjectNode claim = json(resource);
      Optional<ObjectNode> volume = volume(template, claim);
      if (volume.isPresent() && reusedBy.isPresent()) {
        group.withArray("volumes_per_slot").add(ofSlot(template, volume.get(), claim, reusedBy.get()));
      } else if (volume.isPresent()) {
        asEphemeral(volume.get(), claim);
      }
    }
    for (JsonNode volume : template.path("spec").path("volumes")) {
      String name = volume.path("persistentVolumeClaim").path("claimName").asText();
      if (name.matches(".*-exec-" + ID + "-pvc-[0-9]+")) {
        throw new IllegalArgumentException("Spark makes no claim for the volume " + volume.path("name").asText()
            + ": claimName=OnDemand needs options.storageClass and options.sizeLimit, too");
      }
    }
    fillIn(group);
    return group;
  }

  private static ObjectNode json(Object object) {
    try {
      return (ObjectNode) Control.JSON.readTree(Serialization.asJson(object));
    } catch (JsonProcessingException e) {
      throw new IllegalArgumentException("what Spark built cannot be written as JSON: " + e.getMessage(), e);
    }
  }

  /** The pod's volume of this claim. */
  private static Optional<ObjectNode> volume(ObjectNode pod, JsonNode claim) {
    for (JsonNode volume : pod.path("spec").path("volumes")) {
      JsonNode name = volume.path("persistentVolumeClaim").path("claimName");
      if (name.asText().equals(claim.path("metadata").path("name").asText())) {
        return Optional.of((ObjectNode) volume);
      }
    }
    return Optional.empty();
  }

  /** Turns a claim into an ephemeral volume, which Kubernetes creates and deletes with the pod. */
  private static void asEphemeral(ObjectNode volume, JsonNode claim) {
    volume.remove("persistentVolumeClaim");
    ObjectNode template = volume.putObject("ephemeral").putObject("volumeClaimTemplate");
    copyMetadata(claim, template.putObject("metadata"));
    template.set("spec", claim.path("spec"));
  }

  private static void copyMetadata(JsonNode claim, ObjectNode target) {
    for (String part : List.of("labels", "annotations")) {
      if (claim.path("metadata").path(part).size() > 0) {
        target.set(part, claim.path("metadata").path(part));
      }
    }
  }

  /**
   * Turns a claim into a volume of the slot, which posse creates, and which the next executor of the slot mounts. The
   * pod keeps the mounts. The volume's name, and with it the claim's, has a part that only this application has: files
   * of another application in the same run of posse have the same names, and Spark would read them as its own.
   */
  private static ObjectNode ofSlot(ObjectNode pod, ObjectNode volume, JsonNode claim, String app) {
    String name = volume.path("name").asText();
    String hash = UUID.nameUUIDFromBytes(app.getBytes(StandardCharsets.UTF_8)).toString().replace("-", "");
    String ofApp = name + "-" + hash.substring(0, APP_DIGITS);
    for (Iterator<JsonNode> all = pod.path("spec").path("volumes").elements(); all.hasNext();) {
      if (all.next() == volume) {
        all.remove();
      }
    }
    for (String list : List.of("containers", "initContainers")) {
      for (JsonNode container : pod.path("spec").path(list)) {
        for (JsonNode mount : container.path("volumeMounts")) {
          if (mount.path("name").asText().equals(name)) {
            ((ObjectNode) mount).put("name", ofApp);
          }
        }
      }
    }
    JsonNode spec = claim.path("spec");
    ObjectNode slot = Control.JSON.createObjectNode().put("name", ofApp);
    slot.set("size", spec.path("resources").path("requests").path("storage"));
    if (spec.path("storageClassName").isTextual()) {
      slot.set("storage_class", spec.path("storageClassName"));
    }
    slot.set("access", spec.path("accessModes").path(0));
    copyMetadata(claim, slot);
    return slot;
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
