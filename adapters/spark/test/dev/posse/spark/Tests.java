package dev.posse.spark;

/** What the adapter decides by itself, without a Spark that runs: `java -ea dev.posse.spark.Tests`. */
public final class Tests {
  private Tests() {}

  /** Ends with 0 where all is as it should be. */
  public static void main(String[] args) throws Exception {
    if (!Tests.class.desiredAssertionStatus()) {
      throw new IllegalStateException("run it with java -ea");
    }
    ExchangeTest.all();
    SettingsTest.all();
    TemplateTest.all();
    LinkTest.all();
    System.out.println("the adapter's own tests: all right");
    // Threads of the tests may still wait.
    System.exit(0);
  }
}
