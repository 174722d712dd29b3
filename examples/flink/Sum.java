import java.nio.file.Files;
import java.nio.file.Paths;
import java.time.Duration;
import java.util.List;

import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringEncoder;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.core.fs.Path;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;

/**
 * Adds up the squares of the numbers below args[0], and writes the sum for each last digit into the folder args[1].
 * Each number takes 10 ms, until the file $HURRY exists.
 */
public final class Sum {
  public static void main(String[] args) throws Exception {
    String hurry = System.getenv().getOrDefault("HURRY", "/nonexistent");
    StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
    // All numbers are in one window, which ends with the last number.
    env.fromSource(new Numbers(Long.parseLong(args[0])),
            WatermarkStrategy.<Long>noWatermarks().withTimestampAssigner((n, time) -> 0), "numbers")
        .map(n -> {
          Thread.sleep(Files.exists(Paths.get(hurry)) ? 0 : 10);
          return n * n;
        }).returns(Types.LONG)
        .keyBy(square -> square % 10).window(TumblingEventTimeWindows.of(Duration.ofDays(1))).reduce(Long::sum)
        .sinkTo(FileSink.forRowFormat(new Path(args[1]), new SimpleStringEncoder<Long>()).build());
    env.execute("sum");
  }

  private static final class Numbers extends NumberSequenceSource {
    private static final long serialVersionUID = 1L;
    private static final int PARTS = 1_000;

    private Numbers(long count) {
      super(0, count - 1);
    }

    /** Many parts, of which a task takes one after another: so new task managers get some too. */
    @Override
    protected List<NumberSequenceSplit> splitNumberRange(long from, long to, int parallelism) {
      return super.splitNumberRange(from, to, PARTS);
    }
  }
}
