package dev.posse.spark;

import java.util.List;
import java.util.Map;
import java.util.Optional;

import com.fasterxml.jackson.databind.JsonNode;

import io.fabric8.kubernetes.api.model.ConfigMapBuilder;
import io.fabric8.kubernetes.api.model.Container;
import io.fabric8.kubernetes.api.model.HasMetadata;
import io.fabric8.kubernetes.api.model.OwnerReference;
import io.fabric8.kubernetes.api.model.PersistentVolumeClaimBuilder;
import io.fabric8.kubernetes.api.model.Pod;
import io.fabric8.kubernetes.api.model.PodBuilder;
import io.fabric8.kubernetes.api.model.Quantity;

/** Spark's pod becomes posse's template. */
final class TemplateTest {
  private static final Map<String, String> LABELS = Map.of("spark-app-selector", "spark-1", "spark-role", "executor",
      "spark-exec-id", Template.ID, "spark-exec-resourceprofile-id", "0");

  private TemplateTest() {}

  static void all() throws Exception {
    placeholder();
    labels();
    whatIsPosses();
    claims();
    reusedClaims();
    others();
  }

  private static PodBuilder pod() {
    return new PodBuilder().withNewMetadata().withName("x-exec-" + Template.ID).withNamespace("n")
        .withLabels(LABELS).withOwnerReferences(new OwnerReference("v1", true, true, "Pod", "driver", "u"))
        .endMetadata().withNewSpec().withHostname("x-" + Template.ID).addNewContainer().withName("c")
        .addNewEnv().withName("ID").withValue(Template.ID).endEnv()
        .addNewEnv().withName("WORD").withValue("{{APP}}-{{x}}-{{POD_NAME}}").endEnv()
        .withArgs("--id=" + Template.ID, "{{A}}{{B}}").endContainer().endSpec();
  }

  private static JsonNode of(PodBuilder pod, HasMetadata... resources) {
    return group(pod, List.of(resources), Optional.empty()).path("template");
  }

  /** As Spark builds it: its container is apart from the pod. */
  private static JsonNode group(PodBuilder pod, List<HasMetadata> resources, Optional<String> reusedBy) {
    Pod whole = pod.build();
    Container container = whole.getSpec().getContainers().get(0);
    whole.getSpec().setContainers(List.of());
    return Template.group(whole, container, resources, reusedBy);
  }

  private static void placeholder() {
    JsonNode template = of(pod());
    assert !template.toString().contains(Template.ID) : template;
    Check.same(template.at("/metadata/labels/spark-exec-id").asText(), "{{EXECUTOR_ID}}");
    JsonNode container = template.at("/spec/containers/0");
    Check.same(template.at("/spec/hostname").asText(), "x-{{EXECUTOR_ID}}");
    Check.same(container.at("/env/0/value").asText(), "{{EXECUTOR_ID}}");
    Check.same(container.at("/args/0").asText(), "--id={{EXECUTOR_ID}}");
    // Text that only looks like a placeholder stays.
    Check.same(container.at("/env/1/value").asText(), "{{{{APP}}}}-{{x}}-{{{{POD_NAME}}}}");
    Check.same(container.at("/args/1").asText(), "{{{{A}}}}{{{{B}}}}");
  }

  private static void labels() {
    for (String label : LABELS.keySet()) {
      Check.fails(() -> of(pod().editMetadata().removeFromLabels(label).endMetadata()), "no label " + label);
    }
  }

  private static void whatIsPosses() {
    JsonNode template = of(pod().withNewStatus().withPhase("Pending").endStatus());
    for (String path : List.of("/metadata/name", "/metadata/namespace", "/metadata/ownerReferences", "/status")) {
      assert template.at(path).isMissingNode() : path;
    }
  }

  private static void claims() throws Exception {
    String name = "x-exec-" + Template.ID + "-pvc-0";
    PodBuilder pod = pod().editSpec()
        .addNewVolume().withName("data").withNewPersistentVolumeClaim(name, false).endVolume()
        .addNewVolume().withName("mine").withNewPersistentVolumeClaim("mine", true).endVolume().endSpec();
    HasMetadata claim = new PersistentVolumeClaimBuilder().withNewMetadata().withName(name)
        .addToLabels("a", "b").endMetadata().withNewSpec().withAccessModes("ReadWriteOnce").withNewResources()
        .addToRequests("storage", new Quantity("1Gi")).endResources().endSpec().build();
    JsonNode volumes = of(pod, claim).at("/spec/volumes");
    Check.same(volumes.get(0), Control.JSON.readTree("{\"name\":\"data\",\"ephemeral\":{\"volumeClaimTemplate\":"
        + "{\"metadata\":{\"labels\":{\"a\":\"b\"}},\"spec\":{\"accessModes\":[\"ReadWriteOnce\"],"
        + "\"resources\":{\"requests\":{\"storage\":\"1Gi\"}}}}}}"));
    Check.same(volumes.get(1).at("/persistentVolumeClaim/claimName").asText(), "mine");
    Check.fails(() -> of(pod), "no claim for the volume data", "options.storageClass");
  }

  private static JsonNode reused(String app) {
    String claim = "x-exec-" + Template.ID + "-pvc-0";
    PodBuilder pod = pod().editSpec()
        .addNewVolume().withName("mine").withNewPersistentVolumeClaim("mine", true).endVolume()
        .addNewVolume().withName("spark-local-dir-1").withNewPersistentVolumeClaim(claim, false).endVolume()
        .editFirstContainer().addNewVolumeMount().withName("mine").withMountPath("/mine").endVolumeMount()
        .addNewVolumeMount().withName("spark-local-dir-1").withMountPath("/data/spark-x/executor-x").endVolumeMount()
        .endContainer().endSpec();
    HasMetadata object = new PersistentVolumeClaimBuilder().withNewMetadata().withName(claim)
        .addToLabels("a", "b").addToAnnotations("c", "{{APP}}").endMetadata().withNewSpec().withStorageClassName("fast")
        .withAccessModes("ReadWriteOncePod").withNewResources().addToRequests("storage", new Quantity("1Gi"))
        .endResources().endSpec().build();
    return group(pod, List.of(object), Optional.of(app));
  }

  private static void reusedClaims() throws Exception {
    JsonNode group = reused("spark-1");
    Check.same(group.at("/template/spec/volumes").size(), 1);
    Check.same(group.at("/template/spec/volumes/0/name").asText(), "mine");
    JsonNode mounts = group.at("/template/spec/containers/0/volumeMounts");
    String name = mounts.at("/1/name").asText();
    assert name.matches("spark-local-dir-1-[0-9a-f]{12}") : name;
    Check.same(mounts.at("/0/name").asText(), "mine");
    Check.same(mounts.at("/1/mountPath").asText(), "/data/spark-x/executor-x");
    Check.same(group.path("volumes_per_slot"), Control.JSON.readTree("[{\"name\":\"" + name + "\",\"size\":\"1Gi\","
        + "\"storage_class\":\"fast\",\"access\":\"ReadWriteOncePod\",\"labels\":{\"a\":\"b\"},"
        + "\"annotations\":{\"c\":\"{{{{APP}}}}\"}}]"));
    // The same application finds its volumes again, another one gets others.
    Check.same(reused("spark-1"), group);
    assert !reused("spark-2").at("/volumes_per_slot/0/name").asText().equals(name);
    assert of(pod()).path("volumes_per_slot").isMissingNode();
  }

  private static void others() {
    HasMetadata map = new ConfigMapBuilder().withNewMetadata().withName("m").endMetadata().build();
    Check.fails(() -> of(pod(), map), "featureSteps", "ConfigMap", "create m beforehand");
  }
}
