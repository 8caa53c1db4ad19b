import static opencode.tool.v1.Worker.*;

import com.google.protobuf.ByteString;
import com.google.protobuf.Struct;
import com.google.protobuf.Value;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.locks.LockSupport;
import opencode.tool.v1.WorkerServiceGrpc;

/** A worker of the core tools of the conformance kit, from the .proto files and docs/worker-conformance.md alone. */
public class Worker {
  static final Path KIT = Path.of(System.getenv("TOOLGATE_KIT"));
  static final Metadata.Key<String> TOKEN = Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
  static final Metadata.Key<byte[]> DETAILS = Metadata.Key.of("grpc-status-details-bin", Metadata.BINARY_BYTE_MARSHALLER);
  static final String INSTANCE = "wrk_" + UUID.randomUUID();

  /** An assignment that is not over, with what has no receipt. */
  static class Held {
    final TreeMap<Long, WorkerReport> output = new TreeMap<>();
    WorkerReport result;
    long stored;
    boolean isStopped;
  }

  // All of it is guarded by the class.
  static final Map<String, Held> held = new LinkedHashMap<>();
  static final Map<String, Boolean> known = new LinkedHashMap<>();
  static WorkerWelcome welcome = WorkerWelcome.newBuilder().setSilenceMs(15_000).setResumeMs(30_000).build();
  static Connection current;
  static Connection previous;
  static long count;
  static long reachedAt = System.nanoTime();
  static boolean isDraining;

  static synchronized void send(WorkRequest.Builder message) {
    if (current != null) current.requests.onNext(message.build());
  }

  static synchronized void report(Held body, WorkerReport report) {
    if (body.result != null) return;
    if (report.hasOutput()) body.output.put(report.getOutput().getOffset(), report);
    else body.result = report;
    send(WorkRequest.newBuilder().setReport(report));
  }

  static WorkerReport resultOf(String assignment, WorkerResult.Builder result) {
    return WorkerReport.newBuilder().setAssignment(assignment).setResult(result).build();
  }

  static synchronized void note(String line) throws IOException {
    Files.writeString(KIT.resolve("ledger"), line + "\n", StandardOpenOption.APPEND);
  }

  /** Runs a body. Reports are kept until they are stored. */
  static void run(WorkerStart start, Held body) {
    WorkerResult.Builder result = WorkerResult.newBuilder();
    Map<String, Value> input = start.getCall().getInput().getFieldsMap();
    String tool = start.getCall().getTool();
    String text = input.get("text").getStringValue();
    try {
      note("entered " + text);
      long size = tool.equals("kit_write") ? (long) input.get("bytes").getNumberValue() : 0;
      for (long at = 0; at < size && !body.isStopped; at += 16_384) {
        synchronized (Worker.class) {
          while (at - body.stored > welcome.getWindowBytes() && !body.isStopped) Worker.class.wait();
        }
        byte[] data = new byte[(int) Math.min(16_384, size - at)];
        for (int i = 0; i < data.length; i++) data[i] = (byte) ('a' + (at + i) % 26);
        WorkerOutput.Builder output = WorkerOutput.newBuilder().setOffset(at).setData(ByteString.copyFrom(data));
        report(body, WorkerReport.newBuilder().setAssignment(start.getAssignment()).setOutput(output).build());
      }
      boolean waits = tool.equals("kit_wait") || tool.equals("kit_poll");
      while (waits && !body.isStopped && !Files.exists(KIT.resolve("release-" + text))) Thread.sleep(20);
      if (body.isStopped) {
        note("stopped " + text);
        result.setFailed(WorkerFailed.newBuilder().setKind(WorkerFailure.WORKER_FAILURE_STOPPED).setMessage("stopped"));
      } else if (size > 0) result.setCompleted(WorkerCompleted.getDefaultInstance());
      else result.setCompleted(WorkerCompleted.newBuilder().setOutput(text));
    } catch (Exception error) {
      result.setFailed(WorkerFailed.newBuilder().setKind(WorkerFailure.WORKER_FAILURE_DEFECT).setMessage(error.toString()));
    }
    report(body, resultOf(start.getAssignment(), result));
  }

  static void start(WorkerStart start) {
    String assignment = start.getAssignment();
    if (known.putIfAbsent(assignment, !isDraining) != null) return;
    if (isDraining) {
      WorkerReport refusal = resultOf(assignment, WorkerResult.newBuilder().setNotEntered("this process stops"));
      send(WorkRequest.newBuilder().setReport(refusal));
      return;
    }
    Held body = new Held();
    held.put(assignment, body);
    new Thread(() -> run(start, body)).start();
  }

  static void stop(Held body) {
    if (body != null) body.isStopped = true;
    Worker.class.notifyAll();
  }

  static synchronized void drain() {
    isDraining = true;
    send(WorkRequest.newBuilder().setCapacity(WorkerCapacity.newBuilder().setDraining(true)));
    if (held.isEmpty()) Runtime.getRuntime().halt(0);
  }

  static void handle(WorkResponse message) {
    switch (message.getMessageCase()) {
      case START -> start(message.getStart());
      case CANCEL -> stop(held.get(message.getCancel().getAssignment()));
      case RECEIPT -> {
        Held body = held.get(message.getReceipt().getAssignment());
        if (body == null) return;
        body.stored = message.getReceipt().getStoredOrDefault(0, 0);
        body.output.values().removeIf(each -> each.getOutput().getOffset() + each.getOutput().getData().size() <= body.stored);
        Worker.class.notifyAll();
      }
      case PROBE -> {
        boolean entered = known.computeIfAbsent(message.getProbe(), name -> false);
        send(WorkRequest.newBuilder().setKnown(WorkerKnown.newBuilder().setAssignment(message.getProbe()).setEntered(entered)));
      }
      case ENDED -> {
        stop(held.remove(message.getEnded().getAssignment()));
        if (isDraining && held.isEmpty()) Runtime.getRuntime().halt(0);
      }
      case LEAVE -> {
        if (message.getLeave().getStop()) drain();
        else current.leave();
      }
      default -> { }
    }
  }

  static class Connection implements StreamObserver<WorkResponse> {
    final ManagedChannel channel;
    final StreamObserver<WorkRequest> requests;
    long heardAt = System.nanoTime();
    boolean isOver;

    Connection() {
      String address = System.getenv("TOOLGATE_URL").replace("http://", "");
      channel = Grpc.newChannelBuilder(address, InsecureChannelCredentials.create()).build();
      Metadata headers = new Metadata();
      headers.put(TOKEN, "Bearer " + System.getenv("TOOLGATE_TOKEN"));
      var stub = WorkerServiceGrpc.newStub(channel).withInterceptors(MetadataUtils.newAttachHeadersInterceptor(headers));
      requests = stub.work(this);
      WorkerHello.Builder hello = WorkerHello.newBuilder().setProtocol(1).setInstanceId(INSTANCE).setConnection(++count);
      hello.setWorker("java").setCapacity(16).setResumeMs(60_000).setExpectedStoreId(welcome.getStoreId());
      hello.addAllHeld(held.keySet()).addTools(tool("kit_echo")).addTools(tool("kit_write", "bytes", "file_bytes"));
      requests.onNext(WorkRequest.newBuilder().setHello(hello.addTools(tool("kit_wait")).addTools(tool("kit_poll"))).build());
    }

    static WorkerTool tool(String name, String... numbers) {
      Struct.Builder properties = Struct.newBuilder().putFields("text", type("string"));
      for (String each : numbers) properties.putFields(each, type("integer"));
      Struct schema = type("object").getStructValue().toBuilder().putFields("properties", Value.newBuilder().setStructValue(properties).build()).build();
      WorkerTool.Builder tool = WorkerTool.newBuilder().setName(name).setDescription(name + ".").setInputSchema(schema);
      if (name.equals("kit_echo")) tool.addPermissions(PermissionTemplate.newBuilder().setPermission(name).addPatterns("{text}"));
      return tool.build();
    }

    static Value type(String name) {
      Struct schema = Struct.newBuilder().putFields("type", Value.newBuilder().setStringValue(name).build()).build();
      return Value.newBuilder().setStructValue(schema).build();
    }

    /** Leaves the connection open, unread, until the next one is welcome. */
    void leave() {
      isOver = true;
      previous = this;
      current = null;
      Worker.class.notifyAll();
    }

    @Override public void onNext(WorkResponse message) {
      synchronized (Worker.class) {
        heardAt = System.nanoTime();
        if (isOver) return;
        if (!message.hasWelcome()) {
          handle(message);
          return;
        }
        welcome = message.getWelcome();
        current = this;
        if (previous != null) previous.channel.shutdownNow();
        if (isDraining) drain();
        for (Held body : held.values()) {
          for (WorkerReport output : body.output.values()) send(WorkRequest.newBuilder().setReport(output));
          if (body.result != null) send(WorkRequest.newBuilder().setReport(body.result));
        }
      }
    }

    /** Checks for the reason of the `google.rpc.ErrorInfo` in the details. */
    static boolean isStoreChanged(Throwable error) {
      Metadata trailers = Status.trailersFromThrowable(error);
      byte[] details = trailers == null ? null : trailers.get(DETAILS);
      return details != null && new String(details, StandardCharsets.ISO_8859_1).contains("STORE_CHANGED");
    }

    @Override public void onError(Throwable error) {
      synchronized (Worker.class) {
        if (isStoreChanged(error)) {
          held.values().forEach(Worker::stop);
          held.clear();
          welcome = welcome.toBuilder().setStoreId("").build();
        }
        onCompleted();
      }
    }

    @Override public void onCompleted() {
      synchronized (Worker.class) {
        isOver = true;
        if (current == this) current = null;
        channel.shutdownNow();
        Worker.class.notifyAll();
      }
    }
  }

  public static void main(String[] args) throws InterruptedException {
    // Halted as soon as the worker has drained.
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      drain();
      LockSupport.park();
    }));
    synchronized (Worker.class) {
      for (;;) {
        Connection connection = new Connection();
        while (!connection.isOver) {
          Worker.class.wait(Math.max(10, current == connection ? welcome.getBeatMs() / 2 : 100));
          if (current == connection) reachedAt = connection.heardAt;
          send(WorkRequest.newBuilder().setBeat(WorkerBeat.getDefaultInstance()));
          if (System.nanoTime() - connection.heardAt > welcome.getSilenceMs() * 1_000_000L) connection.onCompleted();
          if (System.nanoTime() - reachedAt > welcome.getResumeMs() * 1_000_000L && current == null) held.values().forEach(Worker::stop);
        }
        if (connection != previous) Worker.class.wait(100);
      }
    }
  }
}
