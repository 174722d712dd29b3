package dev.posse.spark;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CountDownLatch;

/** Partial, chunked and invalid HTTP. */
final class ExchangeTest {
  private static final long MILLIS = 10_000;
  private static final SocketAddress LOOPBACK = new InetSocketAddress(InetAddress.getLoopbackAddress(), 0);
  private static final String OK = "HTTP/1.1 200 OK\r\n";

  private ExchangeTest() {}

  static void all() throws Exception {
    bodies();
    pieces();
    broken();
    waiting();
    unixSocket();
  }

  private static void bodies() throws Exception {
    Check.same(answer(OK + "Content-Length: 5\r\n\r\nhello, and no more"), "200 hello");
    Check.same(answer(OK + "content-length:0\r\n\r\n"), "200 ");
    Check.same(answer(OK + "\r\nto the end"), "200 to the end");
    Check.same(answer("HTTP/1.0 404 No\r\n\r\n"), "404 ");
    String chunks = "5;why=not\r\nhello\r\nA\r\n, 10 bytes\r\n0\r\ntrailer: x\r\n\r\nnot this";
    Check.same(answer(OK + "Transfer-Encoding: Chunked\r\n\r\n" + chunks), "200 hello, 10 bytes");
    // If both headers exist, chunks win.
    Check.same(answer(OK + "content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n" + chunks), "200 hello, 10 bytes");
  }

  /** Answers that are split at every byte give the same result. */
  private static void pieces() throws Exception {
    String whole = OK + "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    for (int i = 1; i < whole.length(); i++) {
      Check.same(answer(whole.substring(0, i), whole.substring(i)), "200 abcde");
    }
  }

  private static void broken() {
    Check.fails(() -> answer(""), "no answer");
    Check.fails(() -> answer("HTTP/1.1 200 OK\r\ncontent-"), "no answer");
    Check.fails(() -> answer("SSH-2.0-OpenSSH_9.2\r\n\r\n"), "no HTTP", "SSH-2.0");
    Check.fails(() -> answer("HTTP/1.1 OK\r\n\r\n"), "no HTTP");
    Check.fails(() -> answer(OK + "x: " + "y".repeat(70_000) + "\r\n\r\n"), "head is too long");
    Check.fails(() -> answer(OK + "content-length: 5\r\n\r\nhell"), "broke off");
    Check.fails(() -> answer(OK + "content-length: five\r\n\r\n"), "no number");
    Check.fails(() -> answer(OK + "content-length: -1\r\n\r\n"), "no number");
    String chunked = OK + "transfer-encoding: chunked\r\n\r\n";
    Check.fails(() -> answer(chunked + "3\r\nabc\r\n"), "broke off");
    Check.fails(() -> answer(chunked + "3\r\nabcd\r\n0\r\n\r\n"), "chunks", "broken");
    Check.fails(() -> answer(chunked + "ffffffffffffffffff\r\n"), "no number");
    Check.fails(() -> answer(chunked + "1".repeat(300)), "chunks", "broken");
  }

  private static void waiting() throws Exception {
    CountDownLatch over = new CountDownLatch(1);
    try (ServerSocketChannel server = ServerSocketChannel.open().bind(LOOPBACK);
        ServerSocketChannel silent = ServerSocketChannel.open().bind(LOOPBACK); Selector selector = Selector.open()) {
      Thread serving = serve(server, over, OK + "transfer-encoding: chunked\r\n\r\n1\r\na\r\n");
      Check.fails(() -> new Exchange(silent.getLocalAddress(), selector, request(), 20), "no answer in time");
      try (Exchange exchange = new Exchange(server.getLocalAddress(), selector, request(), MILLIS)) {
        Check.same(new String(exchange.body(MILLIS), StandardCharsets.UTF_8), "a");
        Check.same(exchange.body(20).length, 0);
        // Waking the selector ends the wait.
        selector.wakeup();
        long from = System.nanoTime();
        Check.same(exchange.body(60_000).length, 0);
        assert System.nanoTime() - from < 30_000_000_000L : "it was not woken";
      }
      over.countDown();
      serving.join();
    }
  }

  private static void unixSocket() throws Exception {
    Path path = Files.createTempDirectory("posse").resolve("socket");
    try (ServerSocketChannel server = ServerSocketChannel.open(StandardProtocolFamily.UNIX)) {
      server.bind(UnixDomainSocketAddress.of(path));
      serve(server, new CountDownLatch(0), OK + "content-length: 2\r\n\r\n{}");
      Control.Answer answer = new Control("unix:" + path, null).call("GET", "/", null);
      Check.same(answer.status() + " " + answer.body(), "200 {}");
    } finally {
      Files.delete(path);
      Files.delete(path.getParent());
    }
  }

  private static ByteBuffer request() {
    return ByteBuffer.wrap("GET / HTTP/1.1\r\n\r\n".getBytes(StandardCharsets.ISO_8859_1));
  }

  /** The status and the body of an answer that comes in these pieces. */
  private static String answer(String... pieces) throws Exception {
    try (ServerSocketChannel server = ServerSocketChannel.open().bind(LOOPBACK); Selector selector = Selector.open()) {
      Thread serving = serve(server, new CountDownLatch(0), pieces);
      try (Exchange exchange = new Exchange(server.getLocalAddress(), selector, request(), MILLIS)) {
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        byte[] part;
        while ((part = exchange.body(MILLIS)) != null) {
          assert part.length > 0 : "nothing came";
          all.writeBytes(part);
        }
        return exchange.status() + " " + all.toString(StandardCharsets.UTF_8);
      } finally {
        serving.join();
      }
    }
  }

  private static Thread serve(ServerSocketChannel server, CountDownLatch over, String... pieces) {
    Thread thread = new Thread(() -> {
      try (SocketChannel channel = server.accept()) {
        channel.read(ByteBuffer.allocate(1_000));
        for (String piece : pieces) {
          channel.write(ByteBuffer.wrap(piece.getBytes(StandardCharsets.UTF_8)));
          Thread.sleep(1);
        }
        over.await();
      } catch (IOException | InterruptedException e) {
        // The client has closed the connection.
      }
    });
    thread.start();
    return thread;
  }
}
