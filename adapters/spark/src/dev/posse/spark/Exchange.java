package dev.posse.spark;

import java.io.Closeable;
import java.io.IOException;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.Locale;

/**
 * One HTTP/1.1 request and its answer, over a unix socket or TCP. The JDK's client does not support unix
 * sockets. Reads have a time-out, and another thread can wake them.
 */
final class Exchange implements Closeable {
  private static final byte[] NOTHING = new byte[0];
  /** Buffer size, which also limits the head of an answer. */
  private static final int BUFFER_BYTES = 64 << 10;
  /** Limit for a chunk's size line: 16 hex digits and an extension. */
  private static final int SIZE_LINE_BYTES_MAX = 256;

  private enum Part { LENGTH, SIZE, CHUNK, CHUNK_END, TRAILER, TO_THE_END, OVER }

  private final SocketChannel channel;
  private final Selector selector;
  private final SelectionKey key;
  /** Bytes that were read and not used yet. */
  private final ByteBuffer in = ByteBuffer.allocate(BUFFER_BYTES).flip();
  private boolean ended;
  private int status;
  private Part part = Part.TO_THE_END;
  private long left;

  Exchange(SocketAddress address, Selector selector, ByteBuffer request, long millis) throws IOException {
    this.selector = selector;
    channel = SocketChannel.open(address);
    try {
      channel.configureBlocking(false);
      key = channel.register(selector, SelectionKey.OP_WRITE);
      long until = System.nanoTime() + millis * 1_000_000;
      send(request, until);
      head(until);
    } catch (IOException e) {
      close();
      throw e;
    }
  }

  int status() {
    return status;
  }

  /**
   * The next bytes of the body. Empty after a time-out or if the selector was woken; null at the
   * body's end.
   */
  byte[] body(long millis) throws IOException {
    long until = System.nanoTime() + millis * 1_000_000;
    while (true) {
      byte[] bytes = decode();
      if (part == Part.OVER && bytes.length == 0) {
        return null;
      }
      if (bytes.length > 0) {
        return bytes;
      }
      if (ended) {
        throw new IOException("the answer broke off");
      }
      if (!fill(until)) {
        return NOTHING;
      }
    }
  }

  private void send(ByteBuffer request, long until) throws IOException {
    while (request.hasRemaining()) {
      channel.write(request);
      if (request.hasRemaining() && !await(until) && System.nanoTime() >= until) {
        throw new IOException("the request could not be sent in time");
      }
    }
    key.interestOps(SelectionKey.OP_READ);
  }

  private void head(long until) throws IOException {
    int end;
    while ((end = endOfHead()) < 0) {
      if (ended || in.remaining() == BUFFER_BYTES) {
        throw new IOException(ended ? "no answer" : "the answer's head is too long");
      }
      if (!fill(until) && System.nanoTime() >= until) {
        throw new IOException("no answer in time");
      }
    }
    byte[] head = new byte[end];
    in.get(head);
    String[] lines = new String(head, StandardCharsets.ISO_8859_1).split("\r\n");
    String[] words = lines[0].split(" ");
    if (words.length < 2 || !words[0].startsWith("HTTP/1.") || !words[1].matches("[0-9]{3}")) {
      throw new IOException("this is no HTTP: " + lines[0].substring(0, Math.min(80, lines[0].length())));
    }
    status = Integer.parseInt(words[1]);
    for (String line : lines) {
      int colon = line.indexOf(':');
      String name = line.substring(0, Math.max(colon, 0)).toLowerCase(Locale.ROOT);
      String value = line.substring(colon + 1).strip();
      if (name.equals("content-length")) {
        left = number(value, 10);
        part = left == 0 ? Part.OVER : Part.LENGTH;
      } else if (name.equals("transfer-encoding") && value.equalsIgnoreCase("chunked")) {
        part = Part.SIZE;
        return;
      }
    }
  }

  private int endOfHead() {
    for (int i = in.position(); i + 3 < in.limit(); i++) {
      if (in.get(i) == '\r' && in.get(i + 1) == '\n' && in.get(i + 2) == '\r' && in.get(i + 3) == '\n') {
        return i + 4 - in.position();
      }
    }
    return -1;
  }

  /** The part of the body that has arrived. */
  private byte[] decode() throws IOException {
    while (true) {
      switch (part) {
        case OVER:
          return NOTHING;
        case TO_THE_END:
          byte[] all = take(in.remaining());
          part = ended ? Part.OVER : part;
          return all;
        case LENGTH, CHUNK:
          byte[] bytes = take((int) Math.min(left, in.remaining()));
          left -= bytes.length;
          if (left == 0) {
            part = part == Part.CHUNK ? Part.CHUNK_END : Part.OVER;
          }
          return bytes;
        case SIZE, CHUNK_END, TRAILER:
          String line = line();
          if (line == null) {
            return NOTHING;
          }
          if (part == Part.SIZE) {
            left = number(line.split(";")[0].strip(), 16);
            part = left == 0 ? Part.TRAILER : Part.CHUNK;
          } else if (line.isEmpty()) {
            part = part == Part.TRAILER ? Part.OVER : Part.SIZE;
          } else if (part == Part.CHUNK_END) {
            throw new IOException("the chunks of the answer are broken");
          }
          break;
      }
    }
  }

  private byte[] take(int count) {
    byte[] bytes = new byte[count];
    in.get(bytes);
    return bytes;
  }

  /** Null if the line is not complete yet. */
  private String line() throws IOException {
    for (int i = in.position(); i < in.limit(); i++) {
      if (in.get(i) == '\n') {
        return new String(take(i + 1 - in.position()), StandardCharsets.ISO_8859_1).strip();
      }
    }
    if (in.remaining() > SIZE_LINE_BYTES_MAX) {
      throw new IOException("the chunks of the answer are broken");
    }
    return null;
  }

  private static long number(String digits, int radix) throws IOException {
    try {
      long number = Long.parseLong(digits, radix);
      if (number >= 0) {
        return number;
      }
    } catch (NumberFormatException e) {
      // Reported below.
    }
    throw new IOException("the length of the answer is no number");
  }

  /** True if bytes or the end of the stream have arrived. */
  private boolean fill(long until) throws IOException {
    if (!await(until)) {
      return false;
    }
    in.compact();
    int count = channel.read(in);
    in.flip();
    ended = count < 0;
    return count != 0;
  }

  private boolean await(long until) throws IOException {
    long millis = (until - System.nanoTime()) / 1_000_000;
    if (millis > 0) {
      selector.select(millis);
    } else {
      selector.selectNow();
    }
    return selector.selectedKeys().remove(key);
  }

  @Override
  public void close() throws IOException {
    channel.close();
    // The next select forgets the key, so that the selector can serve another exchange.
    if (selector.isOpen()) {
      selector.selectNow();
    }
  }
}
