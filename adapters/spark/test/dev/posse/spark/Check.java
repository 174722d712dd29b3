package dev.posse.spark;

import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.function.BooleanSupplier;

/** Assertions of the tests. Needs `java -ea`. */
final class Check {
  private static final long PATIENCE_MILLIS = 30_000;

  private Check() {}

  static void same(Object got, Object want) {
    assert Objects.equals(got, want) : "got " + got + ", want " + want;
  }

  /** The call fails with a message that contains these words. */
  static void fails(Callable<?> call, String... words) {
    String said;
    try {
      said = "nothing; it answered " + call.call();
    } catch (Exception e) {
      said = String.valueOf(e.getMessage());
    }
    for (String word : words) {
      assert said.contains(word) : "want " + word + " in: " + said;
    }
    assert !said.startsWith("nothing;") : said;
  }

  static void comes(String what, BooleanSupplier condition) throws InterruptedException {
    long until = System.nanoTime() + PATIENCE_MILLIS * 1_000_000;
    while (!condition.getAsBoolean()) {
      assert System.nanoTime() < until : "never: " + what;
      Thread.sleep(5);
    }
  }
}
