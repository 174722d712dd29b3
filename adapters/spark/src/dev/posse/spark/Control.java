package dev.posse.spark;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.UnixDomainSocketAddress;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.nio.channels.Selector;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.MissingNode;

/** A client of posse's control API. */
final class Control {
  static final ObjectMapper JSON = new ObjectMapper();

  /** A PUT with a template waits for a dry run at the API server. */
  private static final long CALL_MILLIS_MAX = 30_000;
  /** Limit for an answer: the status of 10,000 executors has about 3 MB. */
  private static final int ANSWER_BYTES_MAX = 64 << 20;

  /** An HTTP answer, with any status. */
  record Answer(int status, JsonNode body) {
    boolean isOk() {
      return status == 200;
    }

    /** posse's error message. */
    String error() {
      String error = body.path("error").asText("");
      String field = body.path("field").asText("");
      return error.isEmpty() ? "status " + status : field.isEmpty() ? error : field + ": " + error;
    }
  }

  /** The address as configured, for messages. */
  final String address;
  private final SocketAddress socket;
  /** Null for a unix socket, which is protected by its mode. */
  private final Path tokenFile;

  /** @param address unix:PATH or HOST:PORT */
  Control(String address, String tokenFile) {
    this.address = address;
    this.tokenFile = tokenFile == null ? null : Path.of(tokenFile);
    this.socket = parse(address);
    if (socket instanceof InetSocketAddress && tokenFile == null) {
      throw new IllegalArgumentException(
          "posse at " + address + " asks for a token: name its file in spark.posse.control.tokenFile"
              + " or POSSE_CONTROL_TOKEN_FILE");
    }
  }

  private static SocketAddress parse(String address) {
    if (address.startsWith("unix:")) {
      return UnixDomainSocketAddress.of(address.substring("unix:".length()));
    }
    int colon = address.lastIndexOf(':');
    try {
      InetAddress host = InetAddress.getByName(address.substring(0, colon).replaceAll("^\\[|\\]$", ""));
      if (host.isLoopbackAddress()) {
        return new InetSocketAddress(host, Integer.parseInt(address.substring(colon + 1)));
      }
    } catch (IndexOutOfBoundsException | IllegalArgumentException | UnknownHostException e) {
      // As below.
    }
    // Elsewhere the token would go in clear.
    throw new IllegalArgumentException(
        "spark.posse.control or POSSE_CONTROL is " + address + ", and should be unix:PATH or HOST:PORT on loopback");
  }

  /** The run's status. */
  JsonNode status() throws IOException {
    Answer answer = call("GET", "/v1/status", null);
    if (answer.status() == 401) {
      throw new IllegalArgumentException("posse at " + address
          + " does not know this token: look at spark.posse.control.tokenFile or POSSE_CONTROL_TOKEN_FILE");
    }
    if (!answer.isOk() || !answer.body().has("run")) {
      throw new IOException("the status cannot be read: " + answer.error());
    }
    if (answer.body().path("keep_executors").asBoolean()) {
      throw new IllegalArgumentException("posse's driver.keep_executors is true, and Spark's executors end with their driver,"
          + " because they do not connect to another one: leave it out");
    }
    return answer.body();
  }

  /** For people: posse cannot be reached. */
  IllegalArgumentException silent(IOException why) {
    return new IllegalArgumentException("posse at " + address + " does not answer (" + why.getMessage()
        + "): is `posse run` running, and is this its control address?", why);
  }

  /** Makes one call and reads the whole answer. */
  Answer call(String method, String path, JsonNode body) throws IOException {
    long until = System.nanoTime() + CALL_MILLIS_MAX * 1_000_000;
    byte[] bytes = body == null ? new byte[0] : JSON.writeValueAsBytes(body);
    try (Selector selector = Selector.open();
        Exchange exchange = open(selector, method, path, bytes)) {
      ByteArrayOutputStream all = new ByteArrayOutputStream();
      while (true) {
        long left = (until - System.nanoTime()) / 1_000_000;
        byte[] part = left <= 0 ? new byte[0] : exchange.body(left);
        if (part == null) {
          return new Answer(exchange.status(), read(all.toByteArray()));
        } else if (part.length == 0) {
          throw new IOException("no whole answer within " + CALL_MILLIS_MAX + " ms");
        } else if (all.size() + part.length > ANSWER_BYTES_MAX) {
          throw new IOException("the answer has more than " + ANSWER_BYTES_MAX + " bytes");
        }
        all.writeBytes(part);
      }
    }
  }

  /** Starts an exchange. `selector.wakeup()` interrupts its waits. */
  Exchange open(Selector selector, String method, String path, byte[] body) throws IOException {
    StringBuilder head = new StringBuilder(method).append(' ').append(path).append(" HTTP/1.1\r\n");
    head.append("host: posse\r\nconnection: close\r\n");
    if (tokenFile != null && socket instanceof InetSocketAddress) {
      // Read for each call: the file may have changed.
      String token = Files.readString(tokenFile).strip();
      head.append("authorization: Bearer ").append(token).append("\r\n");
    }
    if (body.length > 0) {
      head.append("content-type: application/json\r\n");
    }
    head.append("content-length: ").append(body.length).append("\r\n\r\n");
    byte[] start = head.toString().getBytes(StandardCharsets.ISO_8859_1);
    ByteBuffer request = ByteBuffer.allocate(start.length + body.length).put(start).put(body).flip();
    return new Exchange(socket, selector, request, CALL_MILLIS_MAX);
  }

  /** Returns an empty value if the text is not JSON. */
  private static JsonNode read(byte[] body) {
    try {
      JsonNode node = JSON.readTree(body);
      return node == null ? MissingNode.getInstance() : node;
    } catch (IOException e) {
      return MissingNode.getInstance();
    }
  }
}
