import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

import org.apache.spark.TaskContext;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/**
 * Joins three tables in three ways, and compares the sums with those of plain loops. Each executor must have the
 * GPU that the first argument names.
 */
public final class Joins {
  private static final int ORDERS = 20_000;
  private static final int CUSTOMERS = 700;
  private static final int COUNTRIES = 7;

  private Joins() {}

  public static void main(String[] args) {
    SparkSession spark = SparkSession.builder().appName("joins").getOrCreate();
    same("sums by country", sums(spark), expectedSums());
    same("customers without orders", withoutOrders(spark), (long) CUSTOMERS / 10);
    same("GPUs", gpus(spark), Set.of(args[0]));
    System.out.println("the result is right: three joins, " + expectedSums());
    spark.stop();
  }

  /** One customer of ten has no orders. */
  private static int customerOf(int order) {
    int customer = order * 31 % CUSTOMERS;
    return customer % 10 == 0 ? customer + 1 : customer;
  }

  private static Map<String, Long> expectedSums() {
    Map<Integer, String> names = new HashMap<>();
    for (int country = 0; country < COUNTRIES; country++) {
      names.put(country, "country-" + country);
    }
    Map<String, Long> sums = new TreeMap<>();
    for (int order = 0; order < ORDERS; order++) {
      sums.merge(names.get(customerOf(order) % COUNTRIES), (long) order, Long::sum);
    }
    return sums;
  }

  /** Shuffles both sides of the first join (sort-merge), and sends the small table of the second to all executors. */
  private static Map<String, Long> sums(SparkSession spark) {
    Dataset<Row> sums = orders(spark).hint("merge").join(customers(spark), "customer")
        .join(functions.broadcast(countries(spark)), "country")
        .groupBy("name").agg(functions.sum("amount").as("sum"));
    Map<String, Long> found = new TreeMap<>();
    for (Row row : sums.collectAsList()) {
      found.put(row.getString(0), row.getLong(1));
    }
    return found;
  }

  private static long withoutOrders(SparkSession spark) {
    Dataset<Row> orders = orders(spark);
    Dataset<Row> customers = customers(spark);
    return customers.join(orders, customers.col("customer").equalTo(orders.col("customer")), "left_anti").count();
  }

  /** The addresses of the GPUs that Spark gave to the tasks. */
  private static Set<String> gpus(SparkSession spark) {
    JavaSparkContext context = JavaSparkContext.fromSparkContext(spark.sparkContext());
    return new TreeSet<>(context.parallelize(List.of(1, 2, 3, 4), 4)
        .map(number -> TaskContext.get().resourcesJMap().get("gpu").addresses()[0]).collect());
  }

  private static Dataset<Row> orders(SparkSession spark) {
    List<Row> rows = new ArrayList<>();
    for (int order = 0; order < ORDERS; order++) {
      rows.add(RowFactory.create(customerOf(order), (long) order));
    }
    return spark.createDataFrame(rows, new StructType().add("customer", DataTypes.IntegerType)
        .add("amount", DataTypes.LongType)).repartition(4);
  }

  private static Dataset<Row> customers(SparkSession spark) {
    List<Row> rows = new ArrayList<>();
    for (int customer = 0; customer < CUSTOMERS; customer++) {
      rows.add(RowFactory.create(customer, customer % COUNTRIES));
    }
    return spark.createDataFrame(rows, new StructType().add("customer", DataTypes.IntegerType)
        .add("country", DataTypes.IntegerType));
  }

  private static Dataset<Row> countries(SparkSession spark) {
    List<Row> rows = new ArrayList<>();
    for (int country = 0; country < COUNTRIES; country++) {
      rows.add(RowFactory.create(country, "country-" + country));
    }
    return spark.createDataFrame(rows, new StructType().add("country", DataTypes.IntegerType)
        .add("name", DataTypes.StringType));
  }

  private static void same(String what, Object got, Object want) {
    if (!got.equals(want)) {
      throw new IllegalStateException(what + " are wrong: " + got + ", want " + want);
    }
  }
}
