package dev.posse.spark;

/** Tests that need no running Spark: `java -ea dev.posse.spark.Tests`. */
public final class Tests {
  private Tests() {}

  /** Exits with 0 if all tests pass. */
  public static void main(String[] args) throws Exception {
    if (!Tests.class.desiredAssertionStatus()) {
      throw new IllegalStateException("run it with java -ea");
    }
    ExchangeTest.all();
    SettingsTest.all();
    TemplateTest.all();
    RenderTest.all();
    SubmitTest.all();
    LinkTest.all();
    System.out.println("the adapter's own tests: all right");
    // Threads of the tests may still run.
    System.exit(0);
  }
}
