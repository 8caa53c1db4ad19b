import com.google.protobuf.*;
import io.grpc.*;
import io.grpc.stub.*;
import java.io.*;
import java.net.URI;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import opencode.tool.v1.Worker.*;
import opencode.tool.v1.WorkerServiceGrpc;
import sun.misc.Signal;

/** A worker without an SDK. Comments name the rules of worker-conformance.md. All but the bodies runs on the thread of `loop`. */
public final class Worker {
  private static final Path KIT = Path.of(System.getenv("TOOLGATE_KIT"));
  private static final ByteString PIECE = ByteString.copyFromUtf8("abcdefghijklmnopqrstuvwxyz".repeat(630));
  private static final int RESUME_MS = 30_000;

  private final String instanceId = "wrk_" + UUID.randomUUID();
  private final ScheduledExecutorService loop = Executors.newSingleThreadScheduledExecutor();
  private final PrintStream ledger = new PrintStream(new FileOutputStream(KIT.resolve("ledger").toFile(), true), true, "UTF-8");
  private final Metadata headers = new Metadata();
  /** Assignments that were entered (true), and those that never may be (false): rules 2 and 7. */
  private final Map<String, Boolean> entered = new HashMap<>();
  /** Entered bodies that are not `ended`: rule 1. */
  private final Map<String, Body> held = new HashMap<>();
  /** The latest welcome. Before the first one: the limits until then. */
  private volatile WorkerWelcome welcome = WorkerWelcome.newBuilder().setSilenceMs(10_000).setResumeMs(RESUME_MS).build();
  private Connection connection, leaving;
  private long connectionCount, beatAt, welcomeAt = now();
  private boolean isDraining, isDrained;

  private Worker() throws IOException {
    headers.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + System.getenv("TOOLGATE_TOKEN"));
    Signal.handle(new Signal("TERM"), signal -> loop.execute(this::drain));
    loop.execute(this::connect);
    loop.scheduleWithFixedDelay(this::tick, 20, 20, TimeUnit.MILLISECONDS);
  }

  public static void main(String[] arguments) throws IOException {
    new Worker();
  }

  private static long now() {
    return System.nanoTime() / 1_000_000;
  }

  /** Does what is due: rules 8 and 9. */
  private void tick() {
    if (isDrained && held.isEmpty()) System.exit(0);
    if (connection.isWelcome) welcomeAt = now();
    if (now() - welcomeAt > welcome.getResumeMs()) held.values().forEach(Body::interrupt);
    if (now() - connection.heardAt > welcome.getSilenceMs()) connection.channel.shutdownNow();
    if (now() - beatAt < welcome.getBeatMs() / 2) return;
    beatAt = now();
    send(WorkRequest.newBuilder().setBeat(WorkerBeat.newBuilder()));
  }

  /** Opens the next connection. From now on it is the only one that is read: rule 6. */
  private void connect() {
    isDrained = false;
    connection = new Connection();
    connection.requests.onNext(WorkRequest.newBuilder().setHello(WorkerHello.newBuilder()
        .setProtocol(1).setInstanceId(instanceId).setConnection(++connectionCount).setWorker("kit-java").setCapacity(8)
        .setResumeMs(RESUME_MS).addAllHeld(held.keySet()).setExpectedStoreId(welcome.getStoreId())
        .addTools(tool("kit_echo").addPermissions(PermissionTemplate.newBuilder().setPermission("kit_echo").addPatterns("{text}")))
        .addTools(tool("kit_write")).addTools(tool("kit_wait")).addTools(tool("kit_poll"))).build());
  }

  private static WorkerTool.Builder tool(String name) {
    Struct.Builder schema = Struct.newBuilder().putFields("type", Value.newBuilder().setStringValue("object").build());
    return WorkerTool.newBuilder().setName(name).setDescription("A tool of the kit.").setInputSchema(schema);
  }

  /** Sends a message if the connection is welcome. Otherwise the next welcome sends what must not be lost. */
  private void send(WorkRequest.Builder message) {
    if (connection.isWelcome) connection.requests.onNext(message.build());
  }

  /** Asks for no more work. The next `leave` with `stop` confirms that none comes: rule 9. */
  private void drain() {
    isDraining = true;
    send(WorkRequest.newBuilder().setCapacity(WorkerCapacity.newBuilder().setDraining(true)));
  }

  private void receive(WorkResponse message) {
    switch (message.getMessageCase()) {
      case WELCOME -> resume(message.getWelcome());
      case START -> start(message.getStart());
      case CANCEL -> find(message.getCancel().getAssignment()).ifPresent(Body::interrupt);
      case RECEIPT -> find(message.getReceipt().getAssignment()).ifPresent(body -> body.release(message.getReceipt()));
      case ENDED -> Optional.ofNullable(held.remove(message.getEnded().getAssignment())).ifPresent(Body::interrupt);
      case PROBE -> send(WorkRequest.newBuilder().setKnown(WorkerKnown.newBuilder()
          .setAssignment(message.getProbe())
          .setEntered(entered.computeIfAbsent(message.getProbe(), assignment -> false))));
      case LEAVE -> {
        leaving = connection;
        if (!message.getLeave().getStop()) connect();
        else if (isDraining) isDrained = true;
        else drain();
      }
      default -> {}
    }
  }

  private Optional<Body> find(String assignment) {
    return Optional.ofNullable(held.get(assignment));
  }

  /** Sends again what the service may lack: rules 3 and 9. */
  private void resume(WorkerWelcome next) {
    welcome = next;
    connection.isWelcome = true;
    if (leaving != null) leaving.channel.shutdownNow();
    if (isDraining) drain();
    held.values().forEach(body -> body.unstored.values().forEach(this::send));
  }

  /** Enters a body once, and none that it denied to a probe or that comes while it drains: rules 2, 7 and 9. */
  private void start(WorkerStart start) {
    boolean isNew = entered.putIfAbsent(start.getAssignment(), !isDraining) == null;
    if (isNew && !isDraining) {
      Body body = new Body(start);
      held.put(start.getAssignment(), body);
      body.start();
    } else if (!entered.get(start.getAssignment())) {
      send(WorkRequest.newBuilder().setReport(WorkerReport.newBuilder().setAssignment(start.getAssignment())
          .setResult(WorkerResult.newBuilder().setNotEntered("The worker drains, or denied this assignment to a probe."))));
    }
  }

  /** One connection. It has its own channel, since a shared one could put the next on the same dead line. */
  private final class Connection implements StreamObserver<WorkResponse> {
    private final ManagedChannel channel = ManagedChannelBuilder
        .forTarget(URI.create(System.getenv("TOOLGATE_URL")).getAuthority()).usePlaintext().executor(loop).build();
    private final StreamObserver<WorkRequest> requests = WorkerServiceGrpc.newStub(channel)
        .withInterceptors(MetadataUtils.newAttachHeadersInterceptor(headers)).work(this);
    private boolean isWelcome;
    private long heardAt = now();

    @Override
    public void onNext(WorkResponse message) {
      heardAt = now();
      if (this == connection) receive(message);
    }

    /** Schedules the next connection. If the store is another one, drops what is held: rules 6 and 10. */
    @Override
    public void onError(Throwable error) {
      channel.shutdownNow();
      if (this != connection) return;
      isWelcome = false;
      loop.schedule(Worker.this::connect, 200, TimeUnit.MILLISECONDS);
      byte[] details = Status.trailersFromThrowable(error).get(
          Metadata.Key.of("grpc-status-details-bin", Metadata.BINARY_BYTE_MARSHALLER));
      if (details == null || !ByteString.copyFrom(details).toStringUtf8().contains("STORE_CHANGED")) return;
      held.values().forEach(Body::interrupt);
      held.clear();
      welcome = welcome.toBuilder().clearStoreId().build();
    }

    @Override
    public void onCompleted() {
      onError(Status.UNAVAILABLE.asRuntimeException(new Metadata()));
    }
  }

  /** The body of one assignment. An interrupt stops it: rule 5. */
  private final class Body extends Thread {
    private final WorkerStart start;
    /** Output without a receipt and the result, by the number of bytes before their end: rule 3. */
    private final SortedMap<Long, WorkRequest.Builder> unstored = new TreeMap<>();
    private volatile long storedBytes;

    private Body(WorkerStart start) {
      this.start = start;
    }

    @Override
    public void run() {
      String tool = start.getCall().getTool();
      Map<String, Value> input = start.getCall().getInput().getFieldsMap();
      String text = input.get("text").getStringValue();
      WorkerCompleted.Builder completed = WorkerCompleted.newBuilder();
      WorkerResult.Builder result = WorkerResult.newBuilder();
      ledger.println("entered " + text);
      try {
        if (tool.equals("kit_write")) write((long) input.get("bytes").getNumberValue());
        else completed.setOutput(text);
        boolean isWaiting = tool.equals("kit_wait") || tool.equals("kit_poll");
        while (isWaiting && !Files.exists(KIT.resolve("release-" + text))) sleep(20);
        result.setCompleted(completed);
      } catch (InterruptedException stop) {
        ledger.println("stopped " + text);
        result.setFailed(WorkerFailed.newBuilder().setKind(WorkerFailure.WORKER_FAILURE_STOPPED).setMessage("stopped"));
      }
      report(Long.MAX_VALUE, WorkerReport.newBuilder().setResult(result));
    }

    /** Writes output, and waits while more than the window has no receipt: rule 4. */
    private void write(long bytes) throws InterruptedException {
      for (long end, offset = 0; offset < bytes; offset = end) {
        end = Math.min(offset + PIECE.size(), bytes);
        ByteString data = PIECE.substring(0, (int) (end - offset));
        report(end, WorkerReport.newBuilder().setOutput(WorkerOutput.newBuilder().setOffset(offset).setData(data)));
        while (end - storedBytes > welcome.getWindowBytes()) sleep(20);
        if (interrupted()) throw new InterruptedException();
      }
    }

    /** Stores and sends a report, unless the assignment is `ended`: rules 3 and 5. */
    private void report(long end, WorkerReport.Builder report) {
      WorkRequest.Builder message = WorkRequest.newBuilder().setReport(report.setAssignment(start.getAssignment()));
      loop.execute(() -> {
        if (!held.containsValue(this)) return;
        unstored.put(end, message);
        send(message);
      });
    }

    /** Forgets output that the service has stored. */
    private void release(WorkerReceipt receipt) {
      storedBytes = Math.max(storedBytes, receipt.getStoredOrDefault(0, 0));
      unstored.headMap(storedBytes + 1).clear();
    }
  }
}
