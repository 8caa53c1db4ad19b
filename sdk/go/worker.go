package toolgate

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	toolv1 "toolgate/gen/opencode/tool/v1"
	"toolgate/gen/opencode/tool/v1/toolv1connect"
)

// WorkerOptions name a service and describe a worker process.
type WorkerOptions struct {
	Options
	// Worker names the fleet: all processes that bring the same tools. Empty: the name of the program.
	Worker string
	// BuildID names the code, such as a commit; it is recorded with each call.
	BuildID string
	// Generation orders builds: new calls get the definitions of the highest one.
	Generation uint64
	// Capacity is how many bodies may run at a time. 0: 16.
	Capacity uint32
	// Workspaces are the names of the workspaces that it serves. Empty: all that its token allows.
	Workspaces []string
	// Resume is how long the service waits for this process after its connection is lost. 0: a minute.
	Resume time.Duration
	// Log writes a line for operators. Nil: to stderr.
	Log func(line string)
}

// Run is the main function of a program that serves tools: [Serve] until a signal drains it. An error is logged, and ends the
// program with status 1.
func Run(tools ...Definition) {
	if err := Serve(context.Background(), tools...); err != nil {
		log.Fatal(err)
	}
}

// Serve serves tools to the service at TOOLGATE_URL with the token in TOOLGATE_TOKEN; see [ServeWith].
func Serve(ctx context.Context, tools ...Definition) error {
	return ServeWith(ctx, WorkerOptions{}, tools...)
}

// ServeWith serves tools, and connects again whenever the connection is lost. At the end of the context, SIGTERM or an interrupt it
// drains: it takes no more work, finishes what runs, and returns nil. The second signal ends the process. It fails if the first
// connection is refused, or if another process has the same instance ID.
func ServeWith(ctx context.Context, options WorkerOptions, tools ...Definition) error {
	worker, err := newWorker(options, tools)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	undo := context.AfterFunc(ctx, func() {
		stop()
		worker.drain()
	})
	defer undo()
	return worker.run()
}

// worker is the state of a worker process, over all of its connections.
type worker struct {
	options WorkerOptions
	hello   *toolv1.WorkerHello
	tools   map[string]Definition

	mu sync.Mutex
	// changed is signalled when a body may write more, or must not.
	changed *sync.Cond
	// bodies are the assignments that are not over.
	bodies map[string]*body
	// known assignments: true if the body was entered at some time, false if it never will be; in the order of `order`.
	known map[string]bool
	order []string
	// outbox is that of the current connection; nil without one.
	outbox     *outbox
	connection uint64
	// previous closes a connection that is left open until the next one is welcome.
	previous func()
	// storeID is the store of the bodies; empty before the first welcome.
	storeID string
	resume  time.Duration
	window  int
	// selfStop stops the bodies when the service is away for too long.
	selfStop   *time.Timer
	isDraining bool
	// isDismissed: the service has confirmed that it sends no more work.
	isDismissed bool
	hasDrained  bool
	drained     chan struct{}
	lastLine    string
}

func newWorker(options WorkerOptions, tools []Definition) (*worker, error) {
	if len(tools) == 0 {
		return nil, errors.New("a worker without tools has nothing to do: name at least one")
	}
	if options.Log == nil {
		options.Log = func(line string) { fmt.Fprintln(os.Stderr, line) }
	}
	if options.Capacity == 0 {
		options.Capacity = 16
	}
	if options.Resume == 0 {
		options.Resume = time.Minute
	}
	made := &worker{
		options: options,
		tools:   map[string]Definition{},
		bodies:  map[string]*body{},
		known:   map[string]bool{},
		resume:  options.Resume,
		drained: make(chan struct{}),
		hello: &toolv1.WorkerHello{
			Protocol: 1, InstanceId: "wrk_" + randomID(), Worker: firstOf(options.Worker, programName()), BuildId: options.BuildID,
			Generation: options.Generation, Capacity: options.Capacity, Workspaces: options.Workspaces,
			ResumeMs: uint32(options.Resume.Milliseconds()), Sdk: "toolgate for Go on " + runtime.Version(),
		},
	}
	made.changed = sync.NewCond(&made.mu)
	for _, tool := range tools {
		if tool.problem != nil {
			return nil, fmt.Errorf("the tool %s cannot be served: %w", tool.declared.Name, tool.problem)
		}
		made.tools[tool.declared.Name] = tool
		made.hello.Tools = append(made.hello.Tools, tool.declared)
	}
	if options.token() == "" {
		return nil, fmt.Errorf("a worker needs a token: %s", made.tokenStep())
	}
	return made, nil
}

// tokenStep is what an operator does for a token that fits the tools.
func (w *worker) tokenStep() string {
	flags := ""
	for _, tool := range w.hello.Tools {
		flags += " --tool " + tool.Name
	}
	return fmt.Sprintf("set TOOLGATE_TOKEN to what `toolgate token create --role worker%s` prints", flags)
}

// refusal is the error of a connection after which no other one is opened, with the next step.
func (w *worker) refusal(err error) error {
	switch reasonOf(err) {
	case "UNAUTHENTICATED", "ROLE_MISSING":
		return fmt.Errorf("the service at %s refuses this worker: %w; next: %s", w.options.url(), err, w.tokenStep())
	case "WORKER_SUPERSEDED":
		return fmt.Errorf("the service at %s refuses this worker: %w; next: start each process from its program, not as a copy of a running one",
			w.options.url(), err)
	}
	return fmt.Errorf("the service at %s refuses this worker: %w", w.options.url(), err)
}

var notInNames = regexp.MustCompile(`[^A-Za-z0-9_.-]`)

func programName() string {
	name := notInNames.ReplaceAllString(filepath.Base(os.Args[0]), "-")
	return clip("go-"+name, 64)
}

// run connects, again and again, until the worker has drained. When another process has the same instance ID it fails: the two would
// end each other's connections without end.
func (w *worker) run() error {
	for attempt := 0; ; attempt++ {
		wasWelcome, err := w.connect()
		if w.isOver() {
			return nil
		}
		if wasWelcome {
			attempt = 0
		} else if w.storeID == "" && err != nil && !isCut(err) {
			return w.refusal(err)
		}
		if reasonOf(err) == "WORKER_SUPERSEDED" {
			w.mu.Lock()
			bodies := w.entered()
			w.mu.Unlock()
			w.stopBodies(bodies, errors.New("another process has taken the place of this worker, so the call is over"))
			return w.refusal(err)
		}
		w.afterConnection(err, wasWelcome)
		pause := backoff(attempt)
		if wasWelcome && err == nil {
			pause = 0
		}
		select {
		case <-time.After(pause):
		case <-w.drained:
			return nil
		}
	}
}

func (w *worker) isOver() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hasDrained
}

const welcomeWait = 15 * time.Second

// connect opens a connection and reads it until it ends, is silent for too long, or is left for the next one. Nothing is read from it
// afterwards. A nil error is a connection that one side ended in order.
func (w *worker) connect() (wasWelcome bool, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	httpClient, with := w.options.connection(w.options.token())
	stream := toolv1connect.NewWorkerServiceClient(httpClient, w.options.url(), with...).Work(ctx)
	box := newOutbox()
	// The end of the context is noticed only after the end of the request.
	abort := func() {
		cancel()
		_ = stream.CloseRequest()
	}
	end := func() {
		box.close()
		abort()
		if w.options.HTTPClient == nil {
			httpClient.CloseIdleConnections()
		}
	}
	isLeft := false
	defer func() {
		if !isLeft {
			end()
		}
	}()
	go func() {
		select {
		case <-w.drained:
			abort()
		case <-ctx.Done():
		}
	}()
	box.push(&toolv1.WorkRequest{Message: &toolv1.WorkRequest_Hello{Hello: w.nextHello()}})
	go box.drain(stream.Send)
	silent := errors.New("the service was silent for too long")
	var wasSilent bool
	limit := welcomeWait
	silence := time.AfterFunc(limit, func() {
		w.mu.Lock()
		wasSilent = true
		w.mu.Unlock()
		abort()
	})
	defer silence.Stop()
	for {
		response, err := stream.Receive()
		if err != nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.outbox = nil
			if wasSilent {
				err = silent
			}
			return wasWelcome, err
		}
		silence.Reset(limit)
		if welcome := response.GetWelcome(); welcome != nil {
			wasWelcome, limit = true, time.Duration(welcome.SilenceMs)*time.Millisecond
			silence.Reset(limit)
			go beat(ctx, box, time.Duration(welcome.BeatMs)*time.Millisecond/2)
			w.welcomed(welcome, box)
		} else if !w.handle(response) {
			w.mu.Lock()
			defer w.mu.Unlock()
			isLeft, w.outbox, w.previous = true, nil, end
			return wasWelcome, nil
		}
	}
}

func beat(ctx context.Context, box *outbox, every time.Duration) {
	ticker := time.NewTicker(max(every, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			box.push(&toolv1.WorkRequest{Message: &toolv1.WorkRequest_Beat{Beat: &toolv1.WorkerBeat{}}})
		case <-ctx.Done():
			return
		}
	}
}

func (w *worker) nextHello() *toolv1.WorkerHello {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.connection++
	w.hello.Connection, w.hello.ExpectedStoreId, w.hello.Held = w.connection, w.storeID, nil
	for assignment, body := range w.bodies {
		if body.isEntered {
			w.hello.Held = append(w.hello.Held, assignment)
		}
	}
	// A copy: an earlier connection may still send this one.
	return proto.CloneOf(w.hello)
}

// welcomed sends again what has no receipt.
func (w *worker) welcomed(welcome *toolv1.WorkerWelcome, box *outbox) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.previous != nil {
		w.previous()
		w.previous = nil
	}
	if w.selfStop != nil {
		w.selfStop.Stop()
	}
	w.storeID, w.outbox, w.window = welcome.StoreId, box, int(welcome.WindowBytes)
	w.resume = time.Duration(welcome.ResumeMs) * time.Millisecond
	if w.isDraining {
		box.push(drainMessage())
	}
	for _, body := range w.bodies {
		body.resend()
	}
	line := "connected"
	for _, tool := range welcome.Tools {
		if tool.Registration == toolv1.ToolRegistration_TOOL_REGISTRATION_REGISTERED {
			line += ", serves " + tool.Name
		} else {
			line += fmt.Sprintf("; the tool %s is refused: %s", tool.Name, tool.Message)
		}
	}
	w.logOnce(line)
	if welcome.Notice != "" {
		w.options.Log(welcome.Notice)
	}
}

// logOnce logs a line, unless it is the last one again. The mutex is held.
func (w *worker) logOnce(line string) {
	if line != w.lastLine {
		w.options.Log(line)
	}
	w.lastLine = line
}

const stopGrace = 5 * time.Second

// afterConnection prepares for the next connection, or for none: after `resume` the calls of this worker are over.
func (w *worker) afterConnection(err error, wasWelcome bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.logOnce(fmt.Sprintf("the connection is lost: %v; connecting again", err))
	}
	if reasonOf(err) == "STORE_CHANGED" {
		go w.stopBodies(w.entered(), errors.New("the service has another store, which does not know this call"))
		for assignment, body := range w.bodies {
			body.isOver = true
			delete(w.bodies, assignment)
		}
		w.storeID = ""
		w.changed.Broadcast()
		w.leaveIfDrained()
	}
	if wasWelcome {
		away := errors.New("this worker reached no replica of the service in time, so the call is over")
		w.selfStop = time.AfterFunc(w.resume, func() {
			w.mu.Lock()
			bodies := w.entered()
			w.mu.Unlock()
			// They stay held until the service reports their end, since they were entered.
			w.stopBodies(bodies, away)
		})
	}
}

// entered are the bodies that were entered. The mutex is held.
func (w *worker) entered() []*body {
	var entered []*body
	for _, body := range w.bodies {
		if body.isEntered {
			entered = append(entered, body)
		}
	}
	return entered
}

func (w *worker) stopBodies(bodies []*body, cause error) {
	for _, body := range bodies {
		body.stop(cause, stopGrace)
	}
}

// drain takes no more work, and leaves when each assignment is over.
func (w *worker) drain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isDraining {
		return
	}
	w.isDraining = true
	w.outbox.push(drainMessage())
	w.leaveIfDrained()
}

// askedToStop drains; for a worker that drains it is the confirmation that no more work comes.
func (w *worker) askedToStop() {
	w.mu.Lock()
	isDraining := w.isDraining
	w.mu.Unlock()
	if isDraining {
		w.dismiss()
	} else {
		w.drain()
	}
}

func (w *worker) dismiss() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isDismissed = true
	w.leaveIfDrained()
}

const dismissal = 5 * time.Second

// leaveIfDrained ends the work of a worker that drains and holds nothing any more. It waits for the service to confirm that, for a
// while: a call whose start is still under way would wait for this process in vain. The mutex is held.
func (w *worker) leaveIfDrained() {
	if !w.isDraining || len(w.bodies) > 0 || w.hasDrained {
		return
	}
	// Without a store it was never connected.
	if !w.isDismissed && w.storeID != "" {
		time.AfterFunc(dismissal, w.dismiss)
		return
	}
	w.hasDrained = true
	close(w.drained)
}

func drainMessage() *toolv1.WorkRequest {
	return &toolv1.WorkRequest{Message: &toolv1.WorkRequest_Capacity{Capacity: &toolv1.WorkerCapacity{Draining: true}}}
}

// reasonOf is the reason (google.rpc.ErrorInfo) of a refused request; empty if the service gave none.
func reasonOf(err error) string {
	var refused *connect.Error
	if !errors.As(err, &refused) {
		return ""
	}
	for _, detail := range refused.Details() {
		if detail.Type() == "google.rpc.ErrorInfo" {
			return firstText(detail.Bytes())
		}
	}
	return ""
}
