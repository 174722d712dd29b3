package dev.posse.spark;

import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;

/** A control API that answers as the test says, and records the calls. */
final class FakePosse implements AutoCloseable {
  private static final String TOKEN = "right";

  /** The recorded writes: "METHOD path body". */
  final List<String> calls = new CopyOnWriteArrayList<>();
  /** The number of calls of /readyz. */
  final AtomicInteger readyz = new AtomicInteger();
  /** Answers by "METHOD path": a status, a space, a body. */
  final Map<String, String> answers = new ConcurrentHashMap<>();
  private final List<String> events = new ArrayList<>();
  private final ExecutorService threads = Executors.newCachedThreadPool();
  private final HttpServer server;
  private final Path token;
  private boolean isClosed;
  private int epoch;

  FakePosse() throws IOException {
    token = Files.createTempFile("posse", "token");
    Files.writeString(token, TOKEN + "\n");
    server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
    server.createContext("/", this::answer);
    server.setExecutor(threads);
    run("r1", "");
    server.start();
  }

  Control control() {
    return new Control(address(), token.toString());
  }

  /** What posse gives to its driver. */
  Map<String, String> env() {
    return Map.of("POSSE_CONTROL", address(), "POSSE_CONTROL_TOKEN_FILE", token.toString(), "POSSE_NAMESPACE", "n");
  }

  private String address() {
    return "127.0.0.1:" + server.getAddress().getPort();
  }

  /** Becomes this run, with these executors; closes the event streams. */
  synchronized void run(String run, String executors) {
    answers.put("GET /v1/status", "200 {\"run\":\"" + run + "\",\"namespace\":\"n\",\"server\":\"https://s:6443\",\"executors\":["
        + executors + "]}");
    epoch++;
    events.clear();
    notifyAll();
  }

  synchronized void event(String json) {
    events.add("{\"seq\":" + (events.size() + 1) + "," + json + "}\n");
    notifyAll();
  }

  void breakToken() throws IOException {
    Files.writeString(token, "wrong");
  }

  private void answer(HttpExchange exchange) throws IOException {
    String call = exchange.getRequestMethod() + " " + exchange.getRequestURI().getPath();
    String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
    if (!call.startsWith("GET")) {
      calls.add(call + " " + body);
    } else if (call.equals("GET /readyz")) {
      readyz.incrementAndGet();
    }
    String query = exchange.getRequestURI().getQuery();
    if (!("Bearer " + TOKEN).equals(exchange.getRequestHeaders().getFirst("authorization"))) {
      send(exchange, 401, "{\"error\":\"no\"}");
    } else if (call.equals("GET /v1/events")) {
      stream(exchange, query != null && query.contains("follow=true"));
    } else {
      String[] words = answers.getOrDefault(call, "200 {\"target\":0}").split(" ", 2);
      send(exchange, Integer.parseInt(words[0]), words[1]);
    }
  }

  private static void send(HttpExchange exchange, int status, String text) throws IOException {
    byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
    exchange.sendResponseHeaders(status, bytes.length);
    exchange.getResponseBody().write(bytes);
    exchange.close();
  }

  /** In chunks, line by line. */
  private void stream(HttpExchange exchange, boolean follow) throws IOException {
    exchange.sendResponseHeaders(200, 0);
    try (OutputStream out = exchange.getResponseBody()) {
      int mine;
      synchronized (this) {
        mine = epoch;
      }
      for (int next = after(exchange.getRequestURI().getQuery()); ; next++) {
        String line;
        synchronized (this) {
          while (follow && next >= events.size() && mine == epoch && !isClosed) {
            wait();
          }
          if (next >= events.size() || mine != epoch || isClosed) {
            return;
          }
          line = events.get(next);
        }
        out.write(line.getBytes(StandardCharsets.UTF_8));
        out.flush();
      }
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }

  private static int after(String query) {
    return query == null ? 0 : Integer.parseInt(query.replaceAll(".*\\bafter=([0-9]+).*", "$1"));
  }

  @Override
  public void close() throws IOException {
    synchronized (this) {
      isClosed = true;
      notifyAll();
    }
    server.stop(0);
    threads.shutdownNow();
    Files.delete(token);
  }
}
