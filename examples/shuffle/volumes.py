"""The driver of the recipe `recovery`: runs app.py with a volume for each slot, and counts the map tasks.

volumes.py FOLDER: the folder for event logs.

Spark's KubernetesLocalDiskShuffleDataIO finds the shuffle files of the slot's last executor on the volume.
"""

import sys

import check

VOLUME = "spark.kubernetes.executor.volumes.persistentVolumeClaim.spark-local-dir-1"
CONF = {
    "spark.executor.instances": "2",
    "spark.kubernetes.driver.reusePersistentVolumeClaim": "true",
    "spark.kubernetes.driver.waitToReusePersistentVolumeClaim": "true",
    "spark.shuffle.sort.io.plugin.class": "org.apache.spark.shuffle.KubernetesLocalDiskShuffleDataIO",
    # Spark looks for files in two folders above the local folder, in folders that begin with spark-.
    f"{VOLUME}.mount.path": "/posse-shuffle/spark-x/executor-x",
    f"{VOLUME}.mount.readOnly": "false",
    f"{VOLUME}.options.claimName": "OnDemand",
    f"{VOLUME}.options.storageClass": "standard",
    f"{VOLUME}.options.sizeLimit": "10Mi",
    # The embedded cluster does not know ReadWriteOncePod.
    "spark.kubernetes.legacy.useReadWriteOnceAccessMode": "true",
}


def main():
    work = sys.argv[1]
    arguments = [word for key, value in CONF.items() for word in ("--conf", f"{key}={value}")]
    at_once = check.run("with volumes of slots", work, arguments, WITH_VOLUMES="at once")
    after = check.run("with volumes of slots and another shuffle before the reduce stage", work, arguments,
                      WITH_VOLUMES="after another shuffle")
    if after != 0:
        sys.exit(f"recovery: wrong: {at_once} and {after} map tasks ran again")


if __name__ == "__main__":
    main()
