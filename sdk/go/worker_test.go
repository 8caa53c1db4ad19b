package toolgate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/anypb"

	toolv1 "toolgate/gen/opencode/tool/v1"
	"toolgate/gen/opencode/tool/v1/toolv1connect"
)

// line is one connection of a worker, as the service sees it.
type line struct {
	t        *testing.T
	hello    *toolv1.WorkerHello
	requests chan *toolv1.WorkRequest
	send     func(*toolv1.WorkResponse)
	end      chan error
}

// fakeService does what a test says.
type fakeService struct {
	toolv1connect.UnimplementedWorkerServiceHandler
	t     *testing.T
	url   string
	lines chan *line
}

func startFakeService(t *testing.T) *fakeService {
	service := &fakeService{t: t, lines: make(chan *line, 16)}
	mux := http.NewServeMux()
	mux.Handle(toolv1connect.NewWorkerServiceHandler(service))
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: mux, Protocols: protocols}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	service.url = "http://" + listener.Addr().String()
	return service
}

func (s *fakeService) Work(_ context.Context, stream *connect.BidiStream[toolv1.WorkRequest, toolv1.WorkResponse]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	var mu sync.Mutex
	made := &line{
		t: s.t, hello: first.GetHello(), requests: make(chan *toolv1.WorkRequest, 1024), end: make(chan error, 1),
		send: func(response *toolv1.WorkResponse) {
			mu.Lock()
			defer mu.Unlock()
			_ = stream.Send(response)
		},
	}
	s.lines <- made
	go func() {
		for {
			request, err := stream.Receive()
			if err != nil {
				return
			}
			made.requests <- request
		}
	}()
	return <-made.end
}

type limits struct {
	silence, resume time.Duration
	window          uint32
}

// accept waits for the next connection and answers its hello.
func (s *fakeService) accept(limits limits) *line {
	s.t.Helper()
	line := s.connected()
	welcome := &toolv1.WorkerWelcome{
		StoreId: "store_1", BeatMs: 30_000, SilenceMs: 60_000, ResumeMs: 60_000, WindowBytes: 1 << 20,
	}
	if limits.silence > 0 {
		welcome.BeatMs, welcome.SilenceMs = uint32(limits.silence.Milliseconds()/2), uint32(limits.silence.Milliseconds())
	}
	if limits.resume > 0 {
		welcome.ResumeMs = uint32(limits.resume.Milliseconds())
	}
	if limits.window > 0 {
		welcome.WindowBytes = limits.window
	}
	line.send(&toolv1.WorkResponse{Message: &toolv1.WorkResponse_Welcome{Welcome: welcome}})
	return line
}

func (s *fakeService) connected() *line {
	s.t.Helper()
	select {
	case line := <-s.lines:
		return line
	case <-time.After(20 * time.Second):
		s.t.Fatal("no connection came")
		return nil
	}
}

// refuse ends the next connection with a reason (google.rpc.ErrorInfo), or without one.
func (s *fakeService) refuse(code connect.Code) {
	s.connected().end <- connect.NewError(code, errors.New("refused"))
}

func (l *line) cut() { l.end <- connect.NewError(connect.CodeUnavailable, errors.New("cut")) }

// next waits for the next message that the function takes; it skips others.
func next[T any](l *line, take func(*toolv1.WorkRequest) T) T {
	l.t.Helper()
	var none T
	for {
		select {
		case request := <-l.requests:
			if taken := take(request); any(taken) != any(none) {
				return taken
			}
		case <-time.After(20 * time.Second):
			l.t.Fatalf("no %T came", none)
		}
	}
}

func output(request *toolv1.WorkRequest) *toolv1.WorkerOutput { return request.GetReport().GetOutput() }
func progress(request *toolv1.WorkRequest) *toolv1.WorkerProgress {
	return request.GetReport().GetProgress()
}
func result(request *toolv1.WorkRequest) *toolv1.WorkerResult { return request.GetReport().GetResult() }

func (l *line) start(assignment, service string) {
	input, _ := structOf(deploy{Env: "dev", Service: service})
	call := &toolv1.WorkerCall{SessionId: "ses_1", CallId: "c1", Tool: "deploy", Input: input}
	start := &toolv1.WorkerStart{Assignment: assignment, Call: call, Attempt: 1}
	l.send(&toolv1.WorkResponse{Message: &toolv1.WorkResponse_Start{Start: start}})
}

// probe returns after the worker has handled everything that was sent before.
func (l *line) probe(assignment string) bool {
	l.send(&toolv1.WorkResponse{Message: &toolv1.WorkResponse_Probe{Probe: assignment}})
	return next(l, (*toolv1.WorkRequest).GetKnown).Entered
}

func (l *line) ended(assignment string) {
	ended := &toolv1.WorkerEnded{Assignment: assignment, Recorded: true}
	l.send(&toolv1.WorkResponse{Message: &toolv1.WorkResponse_Ended{Ended: ended}})
}

type deploy struct {
	Env     string `json:"env"`
	Service string `json:"service"`
}

// entered records the bodies that were entered.
type entered struct {
	mu    sync.Mutex
	names []string
}

func (e *entered) add(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.names = append(e.names, name)
}

func (e *entered) check(t *testing.T, names ...string) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Equal(e.names, names) {
		t.Fatalf("entered %v, not %v", e.names, names)
	}
}

// serveBody serves one tool whose body is the test's; the returned function drains it and waits until it has left.
func serveBody(t *testing.T, s *fakeService, body func(*Context, deploy) (string, error)) (*entered, func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	seen, served := new(entered), make(chan error, 1)
	tool := Tool("deploy", "Deploys a service.", func(ctx *Context, in deploy) (string, error) {
		seen.add(in.Service)
		return body(ctx, in)
	}, Permission("{env}/{service}").Always("{env}/*"))
	options := WorkerOptions{Options: Options{URL: s.url, Token: "t"}, Worker: "ci", Log: func(string) {}}
	go func() { served <- ServeWith(ctx, options, tool) }()
	return seen, func() error {
		cancel()
		return <-served
	}
}

func TestAToolIsDeclaredAndItsResultReported(t *testing.T) {
	service := startFakeService(t)
	_, drain := serveBody(t, service, func(ctx *Context, in deploy) (string, error) {
		_ = ctx.Metadata(Title("to " + in.Service))
		fmt.Fprintln(ctx.Output(), "rolling")
		return "did " + in.Service, nil
	})
	line := service.accept(limits{})
	tool := line.hello.Tools[0]
	if tool.Name != "deploy" || tool.Permissions[0].Permission != "deploy" || tool.InputSchema.Fields["properties"] == nil ||
		!strings.HasPrefix(line.hello.InstanceId, "wrk_") || line.hello.Connection != 1 || tool.OutputSchema != nil {
		t.Fatalf("got %v", line.hello)
	}
	line.start("a1", "shop")
	if got := next(line, progress); got.GetTitle() != "to shop" {
		t.Fatalf("got %v", got)
	}
	if got := next(line, output); string(got.Data) != "rolling\n" {
		t.Fatalf("got %v", got)
	}
	if got := next(line, result); got.GetCompleted().GetOutput() != "did shop" {
		t.Fatalf("got %v", got)
	}
	line.ended("a1")
	if err := drain(); err != nil {
		t.Fatal(err)
	}
}

func TestAfterALostConnectionItSendsAgainWhatHasNoReceipt(t *testing.T) {
	service := startFakeService(t)
	proceed := make(chan struct{})
	seen, _ := serveBody(t, service, func(ctx *Context, in deploy) (string, error) {
		_ = ctx.Metadata(Title("first"))
		_ = ctx.Metadata(Metadata(map[string]any{"step": 2}))
		fmt.Fprint(ctx.Output(), "one,")
		fmt.Fprint(ctx.Output(), "two,")
		<-proceed
		fmt.Fprint(ctx.Output(), "three")
		return "done", nil
	})
	first := service.accept(limits{})
	first.start("a1", "shop")
	next(first, output)
	next(first, output)
	receipt := &toolv1.WorkerReceipt{Assignment: "a1", Stored: map[uint32]uint64{0: 4}}
	first.send(&toolv1.WorkResponse{Message: &toolv1.WorkResponse_Receipt{Receipt: receipt}})
	first.start("a1", "shop")
	if !first.probe("a1") {
		t.Fatal("it says that it did not enter the body")
	}
	first.cut()
	close(proceed)
	second := service.accept(limits{})
	if hello := second.hello; hello.Connection != 2 || !slices.Equal(hello.Held, []string{"a1"}) ||
		hello.ExpectedStoreId != "store_1" || hello.InstanceId != first.hello.InstanceId {
		t.Fatalf("got %v", hello)
	}
	second.start("a1", "shop")
	if got := next(second, progress); got.GetTitle() != "first" || got.Metadata.Fields["step"].GetNumberValue() != 2 {
		t.Fatalf("got %v", got)
	}
	if got := next(second, output); got.Offset != 4 || string(got.Data) != "two," {
		t.Fatalf("got %v", got)
	}
	if got := next(second, output); got.Offset != 8 || string(got.Data) != "three" {
		t.Fatalf("got %v", got)
	}
	next(second, result)
	second.cut()
	third := service.accept(limits{})
	next(third, result)
	third.ended("a1")
	third.probe("a1")
	third.cut()
	if held := service.accept(limits{}).hello.Held; len(held) > 0 {
		t.Fatalf("holds %v", held)
	}
	seen.check(t, "shop")
}

func TestAnAssignmentThatAProbeFoundNotEnteredIsNeverEntered(t *testing.T) {
	service := startFakeService(t)
	seen, _ := serveBody(t, service, func(*Context, deploy) (string, error) { return "done", nil })
	line := service.accept(limits{})
	if line.probe("late") {
		t.Fatal("it says that it entered the body")
	}
	line.start("late", "late")
	line.start("a2", "next")
	next(line, result)
	seen.check(t, "next")
}

func TestAStartOnAConnectionThatWasLeftIsNotRead(t *testing.T) {
	service := startFakeService(t)
	seen, _ := serveBody(t, service, func(*Context, deploy) (string, error) { return "done", nil })
	first := service.accept(limits{})
	leave := &toolv1.WorkerLeave{WithinMs: 1_000}
	first.send(&toolv1.WorkResponse{Message: &toolv1.WorkResponse_Leave{Leave: leave}})
	first.start("a1", "old")
	second := service.accept(limits{})
	second.start("a2", "new")
	next(second, result)
	seen.check(t, "new")
}

func TestABodyThatHasWrittenTheWindowWaitsForAReceipt(t *testing.T) {
	service := startFakeService(t)
	written := make(chan int, 8)
	serveBody(t, service, func(ctx *Context, in deploy) (string, error) {
		for i := range 3 {
			if _, err := ctx.Output().Write(make([]byte, 100)); err != nil {
				return "", err
			}
			written <- i
		}
		return "done", nil
	})
	first := service.accept(limits{window: 150})
	first.start("a1", "shop")
	next(first, output)
	next(first, output)
	first.probe("a1")
	if len(written) != 1 {
		t.Fatalf("%d writes returned", len(written))
	}
	first.cut()
	second := service.accept(limits{window: 150})
	receipt := &toolv1.WorkerReceipt{Assignment: "a1", Stored: map[uint32]uint64{0: 200}}
	second.send(&toolv1.WorkResponse{Message: &toolv1.WorkResponse_Receipt{Receipt: receipt}})
	next(second, result)
}

func TestAttachmentsDoNotCountForTheWindowAndAreSentAgain(t *testing.T) {
	service := startFakeService(t)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	tool := Tool("deploy", "Deploys a service.", func(ctx *Context, in deploy) (Result, error) {
		file := Attachment{MIME: "text/plain", Data: make([]byte, 400), Filename: "a.txt"}
		return Result{Output: "done", Attachments: []Attachment{file}}, nil
	})
	options := WorkerOptions{Options: Options{URL: service.url, Token: "t"}, Worker: "ci", Log: func(string) {}}
	go func() { _ = ServeWith(ctx, options, tool) }()
	first := service.accept(limits{window: 150})
	first.start("a1", "shop")
	next(first, output)
	next(first, result)
	receipt := &toolv1.WorkerReceipt{Assignment: "a1", Stored: map[uint32]uint64{0: 400}}
	first.send(&toolv1.WorkResponse{Message: &toolv1.WorkResponse_Receipt{Receipt: receipt}})
	first.cut()
	second := service.accept(limits{window: 150})
	if again := next(second, output); again.Blob != 1 || again.Offset != 0 || len(again.Data) != 400 {
		t.Fatalf("got blob %d at %d with %d bytes", again.Blob, again.Offset, len(again.Data))
	}
	if got := next(second, result).GetCompleted().Attachments[0]; got.Blob != 1 || got.Filename != "a.txt" {
		t.Fatalf("got %v", got)
	}
}

func TestAnAskInABodyIsAnsweredOnALaterConnection(t *testing.T) {
	service := startFakeService(t)
	serveBody(t, service, func(ctx *Context, in deploy) (string, error) {
		return "allowed", ctx.Ask("deploy_traffic", in.Service)
	})
	first := service.accept(limits{})
	first.start("a1", "shop")
	asked := func(request *toolv1.WorkRequest) *toolv1.WorkerBodyRequest { return request.GetReport().GetRequest() }
	if got := next(first, asked); got.Number != 1 || got.GetAsk().Patterns[0] != "shop" {
		t.Fatalf("got %v", got)
	}
	first.cut()
	second := service.accept(limits{})
	next(second, asked)
	answer := &toolv1.WorkerAnswer{Assignment: "a1", Number: 1}
	second.send(&toolv1.WorkResponse{Message: &toolv1.WorkResponse_Answer{Answer: answer}})
	if got := next(second, result); got.GetCompleted().GetOutput() != "allowed" {
		t.Fatalf("got %v", got)
	}
}

func TestCancelEndsTheContextAndABodyThatGoesOnIsReportedAsStopped(t *testing.T) {
	service := startFakeService(t)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	serveBody(t, service, func(ctx *Context, in deploy) (string, error) {
		<-ctx.Done()
		if in.Service == "ignores" {
			<-release
		}
		return "", context.Cause(ctx)
	})
	line := service.accept(limits{})
	for _, name := range []string{"heeds", "ignores"} {
		line.start(name, name)
		cancel := &toolv1.WorkerCancel{Assignment: name, Message: "enough", GraceMs: 20}
		line.send(&toolv1.WorkResponse{Message: &toolv1.WorkResponse_Cancel{Cancel: cancel}})
		if got := next(line, result); got.GetFailed().GetKind() != toolv1.WorkerFailure_WORKER_FAILURE_STOPPED {
			t.Fatalf("got %v", got)
		}
	}
}

func TestBodiesStopWhenTheServiceIsAwayAndStayHeld(t *testing.T) {
	service := startFakeService(t)
	stopped := make(chan error, 1)
	seen, _ := serveBody(t, service, func(ctx *Context, in deploy) (string, error) {
		<-ctx.Done()
		stopped <- context.Cause(ctx)
		return "", context.Cause(ctx)
	})
	first := service.accept(limits{resume: time.Millisecond})
	first.start("a1", "shop")
	first.probe("a1")
	first.cut()
	if err := <-stopped; !strings.Contains(err.Error(), "reached no replica") {
		t.Fatal(err)
	}
	if held := service.accept(limits{}).hello.Held; !slices.Equal(held, []string{"a1"}) {
		t.Fatalf("holds %v", held)
	}
	seen.check(t, "shop")
}

func TestASilentServiceIsLeft(t *testing.T) {
	service := startFakeService(t)
	serveBody(t, service, func(*Context, deploy) (string, error) { return "", nil })
	service.accept(limits{silence: 40 * time.Millisecond})
	if got := service.accept(limits{}).hello.Connection; got != 2 {
		t.Fatalf("connection %d", got)
	}
}

func TestAWorkerThatDrainsFinishesItsBodiesAndRefusesNewOnes(t *testing.T) {
	service := startFakeService(t)
	proceed := make(chan struct{})
	seen, drain := serveBody(t, service, func(*Context, deploy) (string, error) {
		<-proceed
		return "done", nil
	})
	line := service.accept(limits{})
	line.start("a1", "shop")
	line.probe("a1")
	left := make(chan error, 1)
	go func() { left <- drain() }()
	if !next(line, (*toolv1.WorkRequest).GetCapacity).Draining {
		t.Fatal("it does not drain")
	}
	line.start("a2", "late")
	if got := next(line, result); got.GetNotEntered() == "" {
		t.Fatalf("got %v", got)
	}
	line.ended("a2")
	close(proceed)
	next(line, result)
	line.ended("a1")
	// A start may be under way until the service has confirmed that none is.
	line.start("a3", "later")
	if got := next(line, result); got.GetNotEntered() == "" {
		t.Fatalf("got %v", got)
	}
	line.ended("a3")
	line.send(&toolv1.WorkResponse{Message: &toolv1.WorkResponse_Leave{Leave: &toolv1.WorkerLeave{Stop: true}}})
	if err := <-left; err != nil {
		t.Fatal(err)
	}
	seen.check(t, "shop")
}

func TestTheFirstConnectionMayBeRefusedLaterOnesAreTriedAgain(t *testing.T) {
	service := startFakeService(t)
	refused := make(chan error, 1)
	options := WorkerOptions{Options: Options{URL: service.url, Token: "t"}, Worker: "ci", Log: func(string) {}}
	tool := Tool("deploy", "Deploys a service.", func(*Context, deploy) (string, error) { return "", nil })
	go func() { refused <- ServeWith(context.Background(), options, tool) }()
	service.refuse(connect.CodeFailedPrecondition)
	if err := <-refused; connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Fatalf("got %v", err)
	}
	serveBody(t, service, func(*Context, deploy) (string, error) { return "", nil })
	service.accept(limits{}).cut()
	service.refuse(connect.CodeFailedPrecondition)
	if got := service.accept(limits{}).hello.Connection; got != 3 {
		t.Fatalf("connection %d", got)
	}
}

func TestAWorkerWhoseInstanceIDAnotherProcessHasEndsAndDoesNotConnectAgain(t *testing.T) {
	service := startFakeService(t)
	stopped := make(chan error, 1)
	_, left := serveBody(t, service, func(ctx *Context, _ deploy) (string, error) {
		<-ctx.Done()
		stopped <- context.Cause(ctx)
		return "", nil
	})
	first := service.accept(limits{})
	first.start("a1", "shop")
	if !first.probe("a1") {
		t.Fatal("it did not enter the body")
	}
	refusal := connect.NewError(connect.CodeAborted, errors.New("a later connection"))
	info, err := connect.NewErrorDetail(&anypb.Any{
		TypeUrl: "type.googleapis.com/google.rpc.ErrorInfo", Value: append([]byte{0x0a, 17}, "WORKER_SUPERSEDED"...),
	})
	if err != nil {
		t.Fatal(err)
	}
	refusal.AddDetail(info)
	first.end <- refusal
	if cause := <-stopped; !strings.Contains(cause.Error(), "another process") {
		t.Fatalf("got %v", cause)
	}
	if err := left(); connect.CodeOf(err) != connect.CodeAborted || !strings.Contains(err.Error(), "not as a copy of a running one") {
		t.Fatalf("got %v", err)
	}
}

func TestFailuresOfBodiesHaveTheirKind(t *testing.T) {
	service := startFakeService(t)
	serveBody(t, service, func(_ *Context, in deploy) (string, error) {
		switch in.Service {
		case "panics":
			panic("oops")
		case "changed":
			return "", ErrChanged
		default:
			return "", NoEffects(errors.New("not found"))
		}
	})
	line := service.accept(limits{})
	for name, want := range map[string]*toolv1.WorkerFailed{
		"panics":  {Kind: toolv1.WorkerFailure_WORKER_FAILURE_DEFECT},
		"changed": {Kind: toolv1.WorkerFailure_WORKER_FAILURE_CHANGED, NoEffects: true},
		"fails":   {Kind: toolv1.WorkerFailure_WORKER_FAILURE_EXPECTED, NoEffects: true},
	} {
		line.start(name, name)
		got := next(line, result).GetFailed()
		if got.GetKind() != want.Kind || got.GetNoEffects() != want.NoEffects || got.GetMessage() == "" {
			t.Fatalf("%s: got %v", name, got)
		}
	}
}

func TestABodyWhoseMessagesCannotBeSentFailsAlone(t *testing.T) {
	service := startFakeService(t)
	large := map[string]string{"a": strings.Repeat("x", maxMessageBytes)}
	serveBody(t, service, func(ctx *Context, in deploy) (string, error) {
		switch in.Service {
		case "invalid":
			return "a\xff", nil
		case "long":
			return "", errors.New("a" + strings.Repeat("é", maxErrorBytes))
		case "progress":
			return "", ctx.Metadata(Title(strings.Repeat("é", maxTitleBytes)), Metadata(large))
		case "pattern":
			return "", ctx.Ask("deploy", "a\xff")
		case "state":
			return "", ctx.SetState("a", large)
		default:
			return "fine", nil
		}
	})
	line := service.accept(limits{})
	line.start("invalid", "invalid")
	if got := next(line, result).GetCompleted().GetOutput(); got != "a\ufffd" {
		t.Fatalf("got %q", got)
	}
	for _, name := range []string{"long", "progress", "pattern", "state"} {
		line.start(name, name)
		if got := next(line, result).GetFailed(); got.GetKind() != toolv1.WorkerFailure_WORKER_FAILURE_EXPECTED {
			t.Fatalf("%s: got %v", name, got)
		}
		line.start(name+" next", "fine")
		if got := next(line, result).GetCompleted().GetOutput(); got != "fine" {
			t.Fatalf("%s: got %q", name, got)
		}
	}
}

func TestAPlanThatDiffersAtTheStartIsNotEntered(t *testing.T) {
	service := startFakeService(t)
	var plans int
	seen := new(entered)
	tool := Tool("deploy", "Deploys a service.", func(_ *Context, in deploy) (string, error) {
		seen.add(in.Service)
		return "done", nil
	}, Planned(func(_ *Context, in deploy) (*Plan, error) {
		plans++
		return &Plan{Title: "to " + in.Service, Asks: []Ask{{Permission: "deploy", Patterns: []string{in.Service}}}, Binds: fmt.Sprint(plans)}, nil
	}))
	options := WorkerOptions{Options: Options{URL: service.url, Token: "t"}, Log: func(string) {}}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() { _ = ServeWith(ctx, options, tool) }()
	line := service.accept(limits{})
	input, _ := structOf(deploy{Service: "shop"})
	plan := &toolv1.WorkerPlan{PlanId: "p1", Call: &toolv1.WorkerCall{Tool: "deploy", Input: input}}
	line.send(&toolv1.WorkResponse{Message: &toolv1.WorkResponse_Plan{Plan: plan}})
	planned := next(line, (*toolv1.WorkRequest).GetPlanned)
	if planned.Title != "to shop" || planned.Asks[0].Patterns[0] != "shop" || len(planned.Detail) == 0 {
		t.Fatalf("got %v", planned)
	}
	start := &toolv1.WorkerStart{Assignment: "a1", Call: plan.Call, Detail: planned.Detail}
	line.send(&toolv1.WorkResponse{Message: &toolv1.WorkResponse_Start{Start: start}})
	if got := next(line, result).GetFailed(); got.GetKind() != toolv1.WorkerFailure_WORKER_FAILURE_CHANGED {
		t.Fatalf("got %v", got)
	}
	seen.check(t)
}

type release struct {
	Version string `json:"version"`
}

func TestAStructuredResultHasASchema(t *testing.T) {
	tool := Tool("release", "Makes a release.", func(*Context, deploy) (release, error) { return release{"1.0"}, nil })
	if tool.problem != nil || tool.declared.OutputSchema.Fields["properties"].GetStructValue().Fields["version"] == nil {
		t.Fatalf("got %v, %v", tool.declared, tool.problem)
	}
	completed, err := structured(release{"1.0"})
	if err != nil || completed.Structured.GetStructValue().Fields["version"].GetStringValue() != "1.0" {
		t.Fatalf("got %v, %v", completed, err)
	}
}

func TestAWorkerWithoutATokenNamesTheCommandThatCreatesOne(t *testing.T) {
	t.Setenv("TOOLGATE_TOKEN", "")
	greet := Tool("greet", "Greets a person.", func(_ *Context, in command) (string, error) { return in.Command, nil })
	err := Serve(t.Context(), greet)
	if err == nil || !strings.Contains(err.Error(), "toolgate token create --role worker --tool greet") {
		t.Fatalf("got %v", err)
	}
}
