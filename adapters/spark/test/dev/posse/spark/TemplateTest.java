package dev.posse.spark;

import java.util.List;
import java.util.Map;

import com.fasterxml.jackson.databind.JsonNode;

import io.fabric8.kubernetes.api.model.ConfigMapBuilder;
import io.fabric8.kubernetes.api.model.HasMetadata;
import io.fabric8.kubernetes.api.model.OwnerReference;
import io.fabric8.kubernetes.api.model.PersistentVolumeClaimBuilder;
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
    return Template.of(pod.build(), List.of(resources));
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
  }

  private static void others() {
    HasMetadata map = new ConfigMapBuilder().withNewMetadata().withName("m").endMetadata().build();
    Check.fails(() -> of(pod(), map), "featureSteps", "ConfigMap", "create m beforehand");
  }
}
