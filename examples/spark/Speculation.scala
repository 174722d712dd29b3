import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.TaskContext
import org.apache.spark.scheduler.{SparkListener, SparkListenerTaskStart}
import org.apache.spark.sql.SparkSession

/** The first attempt of one task hangs. Spark starts a copy of it on another executor, and the sums are right. */
object Speculation {
  private val HangMillis = 600000L

  def main(args: Array[String]): Unit = {
    val spark = SparkSession.builder().appName("speculation").getOrCreate()
    // On a busy machine other tasks are copied too.
    val copied = ConcurrentHashMap.newKeySet[(Int, Int)]()
    spark.sparkContext.addSparkListener(new SparkListener {
      override def onTaskStart(start: SparkListenerTaskStart): Unit =
        if (start.taskInfo.speculative) copied.add((start.stageId, start.taskInfo.index))
    })
    val sums = spark.sparkContext.parallelize(0L until 8L, 8).map { number =>
      if (number == 0 && TaskContext.get().attemptNumber() == 0) Thread.sleep(HangMillis)
      (number % 2, number)
    }.reduceByKey(_ + _).collectAsMap().toMap
    require(sums == Map(0L -> 12L, 1L -> 16L), s"the sums are wrong: $sums")
    require(copied.contains((0, 0)), s"the task that hangs was not copied: $copied")
    println(s"the result is right: the task that hangs was started twice, $sums")
    spark.stop()
  }
}
