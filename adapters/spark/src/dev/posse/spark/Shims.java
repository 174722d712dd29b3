package dev.posse.spark;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;

/**
 * What differs between the versions of Spark. The jar is compiled against the oldest one, 3.5 with Scala 2.12, and
 * serves all later ones.
 */
final class Shims {
  private static final int MAJOR_MIN = 3;
  private static final int MINOR_MIN = 5;

  private Shims() {}

  /** @throws IllegalArgumentException if the jar does not serve this version, such as 4.3.0 */
  static void check(String version) {
    if (!isSince(version, MAJOR_MIN, MINOR_MIN)) {
      throw new IllegalArgumentException("this is Spark " + version + ", and the adapter needs Spark " + MAJOR_MIN + "."
          + MINOR_MIN + " or later");
    }
  }

  /** A version that is no number is somebody's own, and taken for a new one. */
  static boolean isSince(String version, int majorMin, int minorMin) {
    String[] parts = version.split("[^0-9]", 3);
    if (parts.length < 2 || !parts[0].matches("[0-9]{1,4}") || !parts[1].matches("[0-9]{1,4}")) {
      return true;
    }
    int major = Integer.parseInt(parts[0]);
    return major > majorMin || major == majorMin && Integer.parseInt(parts[1]) >= minorMin;
  }

  /** A Scala collection in Java: Scala 2.12 and 2.13 have no converter in common that is not deprecated. */
  static <T> List<T> list(scala.collection.Iterable<T> all) {
    List<T> list = new ArrayList<>();
    for (scala.collection.Iterator<T> each = all.iterator(); each.hasNext();) {
      list.add(each.next());
    }
    return list;
  }

  /** Calls a method that returns a Seq. It is another type in Scala 2.13, so the compiled call would find no method. */
  @SuppressWarnings("unchecked")
  static <T> List<T> listOf(Object object, String name) {
    try {
      Method method = object.getClass().getMethod(name);
      return list((scala.collection.Iterable<T>) method.invoke(object));
    } catch (ReflectiveOperationException e) {
      throw new NoSuchMethodError(object.getClass().getName() + "." + name + ": " + e);
    }
  }
}
