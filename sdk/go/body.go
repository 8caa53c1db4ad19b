package toolgate

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	toolv1 "toolgate/gen/opencode/tool/v1"
)

// body is an assignment that is not over, with everything of it that the next connection has to send again. The worker's mutex
// guards its fields below `cancel`.
type body struct {
	worker     *worker
	assignment string
	start      *toolv1.WorkerStart
	ctx        context.Context
	cancel     context.CancelCauseFunc
	// isEntered is false for a body that never will be entered.
	isEntered bool
	progress  *toolv1.WorkerProgress
	// output has no receipt; unstored is its length without the attachments, which get none.
	output   []*toolv1.WorkerOutput
	unstored int
	// sent is the number of bytes of each blob.
	sent map[uint32]uint64
	// requests have no answer, in order.
	requests []*openRequest
	last     uint32
	// result is the end that was reported; nothing follows it.
	result *toolv1.WorkerResult
	// isOver: the service needs nothing of it any more.
	isOver bool
}

type openRequest struct {
	request *toolv1.WorkerBodyRequest
	answer  chan *toolv1.WorkerAnswer
}

const (
	maxPieceBytes   = 262_144
	maxMessageBytes = 1_000_000
	maxTitleBytes   = 1_024
	maxNoteBytes    = 4_096
	maxErrorBytes   = 16_000
)

var errOver = errors.New("the call is over")

// send reports something of the body; it is also kept for later connections. The worker's mutex is held.
func (b *body) send(report *toolv1.WorkerReport) {
	report.Assignment = b.assignment
	b.worker.outbox.push(&toolv1.WorkRequest{Message: &toolv1.WorkRequest_Report{Report: report}})
}

func (b *body) progressed(update *toolv1.WorkerProgress) error {
	b.worker.mu.Lock()
	defer b.worker.mu.Unlock()
	if b.result != nil || b.isOver {
		return nil
	}
	kept := &toolv1.WorkerProgress{Title: update.Title, Metadata: update.Metadata}
	if b.progress != nil {
		if kept.Title == nil {
			kept.Title = b.progress.Title
		}
		if kept.Metadata == nil {
			kept.Metadata = b.progress.Metadata
		}
	}
	if err := checkMessage(kept); err != nil {
		return err
	}
	b.progress = kept
	b.send(&toolv1.WorkerReport{Report: &toolv1.WorkerReport_Progress{Progress: update}})
	return nil
}

// write sends bytes of a blob and waits until so much of them is stored that more may follow.
func (b *body) write(blob uint32, data []byte) error {
	b.worker.mu.Lock()
	defer b.worker.mu.Unlock()
	for len(data) > 0 {
		if b.result != nil || b.isOver {
			return errOver
		}
		piece := append([]byte(nil), data[:min(len(data), maxPieceBytes)]...)
		data = data[len(piece):]
		output := &toolv1.WorkerOutput{Blob: blob, Offset: b.sent[blob], Data: piece}
		b.sent[blob] += uint64(len(piece))
		b.output = append(b.output, output)
		b.unstored += unstoredOf(output)
		b.send(&toolv1.WorkerReport{Report: &toolv1.WorkerReport_Output{Output: output}})
		for b.unstored > b.worker.window && b.ctx.Err() == nil && b.result == nil && !b.isOver {
			b.worker.changed.Wait()
		}
		if b.ctx.Err() != nil {
			return context.Cause(b.ctx)
		}
	}
	return nil
}

// request sends a request and waits for its answer, which may come on a later connection.
func (b *body) request(request *toolv1.WorkerBodyRequest) (*toolv1.WorkerAnswer, error) {
	if err := checkMessage(request); err != nil {
		return nil, err
	}
	open := &openRequest{request: request, answer: make(chan *toolv1.WorkerAnswer, 1)}
	b.worker.mu.Lock()
	if b.result != nil || b.isOver {
		b.worker.mu.Unlock()
		return nil, errOver
	}
	b.last++
	request.Number = b.last
	b.requests = append(b.requests, open)
	b.send(&toolv1.WorkerReport{Report: &toolv1.WorkerReport_Request{Request: request}})
	b.worker.mu.Unlock()
	select {
	case answer := <-open.answer:
		return answer, nil
	case <-b.ctx.Done():
		return nil, context.Cause(b.ctx)
	}
}

// run enters the body and reports its result.
func (b *body) run(tool Definition) {
	ctx := &Context{Context: b.ctx, Call: b.start.Call, Attempt: b.start.Attempt, body: b}
	result, err := runBody(ctx, tool, b.start)
	if err == nil {
		var completed *toolv1.WorkerCompleted
		if completed, err = b.completed(result); err == nil {
			err = checkMessage(completed)
		}
		if err == nil {
			b.finish(&toolv1.WorkerResult{Outcome: &toolv1.WorkerResult_Completed{Completed: completed}})
			return
		}
	}
	b.finish(&toolv1.WorkerResult{Outcome: &toolv1.WorkerResult_Failed{Failed: failedOf(b.ctx, err)}})
}

// defect is a panic of a body.
type defect struct{ text string }

func (d *defect) Error() string { return d.text }

func runBody(ctx *Context, tool Definition, start *toolv1.WorkerStart) (result any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = &defect{fmt.Sprintf("panic: %v\n%s", cause, debug.Stack())}
		}
	}()
	input, err := inputOf(start.Call)
	if err != nil {
		return nil, err
	}
	if tool.plan != nil {
		plan, err := tool.plan(&Context{Context: ctx.Context, Call: start.Call}, input)
		if err != nil {
			return nil, err
		}
		if string(plan.digest()) != string(start.Detail) {
			return nil, fmt.Errorf("the plan of %s differs from the approved one; make the call again: %w", start.Call.Tool, ErrChanged)
		}
	}
	return tool.enter(ctx, input)
}

func inputOf(call *toolv1.WorkerCall) ([]byte, error) {
	if call.GetInput() == nil {
		return []byte("{}"), nil
	}
	return call.Input.MarshalJSON()
}

// completed sends long output and files of a result, and returns the rest.
func (b *body) completed(value any) (*toolv1.WorkerCompleted, error) {
	result, isResult := value.(Result)
	if text, isText := value.(string); isText {
		result.Output = text
	} else if !isResult {
		return structured(value)
	}
	metadata, err := structOf(result.Metadata)
	if err != nil {
		return nil, fmt.Errorf("the metadata of the result cannot be sent: %w", err)
	}
	completed := &toolv1.WorkerCompleted{Note: clip(result.Note, maxNoteBytes), Metadata: metadata}
	if result.Title != "" {
		title := clip(result.Title, maxTitleBytes)
		completed.Title = &title
	}
	written := b.written()
	if len(result.Output) > 131_072 {
		if written > 0 {
			return nil, errors.New("the tool wrote output and returned another one of more than 131072 bytes; return less")
		}
		if err := b.write(0, []byte(result.Output)); err != nil {
			return nil, err
		}
	} else if result.Output != "" || written == 0 {
		output := validText(result.Output)
		completed.Output = &output
	}
	for index, file := range result.Attachments {
		blob := uint32(index + 1)
		if err := b.write(blob, file.Data); err != nil {
			return nil, err
		}
		completed.Attachments = append(completed.Attachments, &toolv1.WorkerAttachment{Blob: blob, Mime: file.MIME, Filename: file.Filename})
	}
	return completed, nil
}

// written is the number of bytes of the output so far.
func (b *body) written() uint64 {
	b.worker.mu.Lock()
	defer b.worker.mu.Unlock()
	return b.sent[0]
}

func structured(value any) (*toolv1.WorkerCompleted, error) {
	text, err := jsonOf(value)
	if err != nil {
		return nil, err
	}
	made := new(structpb.Value)
	output := string(text)
	return &toolv1.WorkerCompleted{Structured: made, Output: &output}, made.UnmarshalJSON(text)
}

func failedOf(ctx context.Context, err error) *toolv1.WorkerFailed {
	failed := &toolv1.WorkerFailed{Kind: toolv1.WorkerFailure_WORKER_FAILURE_EXPECTED, Message: clip(err.Error(), maxErrorBytes)}
	var panicked *defect
	var invalid *invalidInput
	var unchanged *noEffects
	switch {
	case ctx.Err() != nil:
		failed.Kind = toolv1.WorkerFailure_WORKER_FAILURE_STOPPED
	case errors.As(err, &panicked):
		failed.Kind = toolv1.WorkerFailure_WORKER_FAILURE_DEFECT
	case errors.As(err, &invalid):
		failed.Kind, failed.NoEffects = toolv1.WorkerFailure_WORKER_FAILURE_INVALID_INPUT, true
	case errors.Is(err, ErrChanged):
		failed.Kind, failed.NoEffects = toolv1.WorkerFailure_WORKER_FAILURE_CHANGED, true
	}
	failed.NoEffects = failed.NoEffects || errors.As(err, &unchanged)
	return failed
}

// finish reports the end, once.
func (b *body) finish(result *toolv1.WorkerResult) {
	b.worker.mu.Lock()
	defer b.worker.mu.Unlock()
	if b.result != nil || b.isOver {
		return
	}
	b.result, b.requests = result, nil
	b.send(&toolv1.WorkerReport{Report: &toolv1.WorkerReport_Result{Result: result}})
	b.worker.changed.Broadcast()
}

// stop cancels the context of the body. Its result counts for a time, then it is STOPPED.
func (b *body) stop(cause error, grace time.Duration) {
	b.cancel(cause)
	b.worker.mu.Lock()
	b.worker.changed.Broadcast()
	b.worker.mu.Unlock()
	time.AfterFunc(grace, func() {
		failed := &toolv1.WorkerFailed{Kind: toolv1.WorkerFailure_WORKER_FAILURE_STOPPED, Message: "the body did not stop in time"}
		b.finish(&toolv1.WorkerResult{Outcome: &toolv1.WorkerResult_Failed{Failed: failed}})
	})
}

// resend sends everything that has no receipt, in an order in which nothing follows the result. The worker's mutex is held.
func (b *body) resend() {
	if b.progress != nil {
		b.send(&toolv1.WorkerReport{Report: &toolv1.WorkerReport_Progress{Progress: b.progress}})
	}
	for _, output := range b.output {
		b.send(&toolv1.WorkerReport{Report: &toolv1.WorkerReport_Output{Output: output}})
	}
	for _, open := range b.requests {
		b.send(&toolv1.WorkerReport{Report: &toolv1.WorkerReport_Request{Request: open.request}})
	}
	if b.result != nil {
		b.send(&toolv1.WorkerReport{Report: &toolv1.WorkerReport_Result{Result: b.result}})
	}
}

// receive drops what is stored. The worker's mutex is held.
func (b *body) receive(stored map[uint32]uint64) {
	var kept []*toolv1.WorkerOutput
	b.unstored = 0
	for _, output := range b.output {
		if output.Offset+uint64(len(output.Data)) > stored[output.Blob] {
			kept = append(kept, output)
			b.unstored += unstoredOf(output)
		}
	}
	b.output = kept
	b.worker.changed.Broadcast()
}

// unstoredOf returns how much of the window a piece takes: attachments are kept until the call has ended, and take none of it.
func unstoredOf(output *toolv1.WorkerOutput) int {
	if output.Blob != 0 {
		return 0
	}
	return len(output.Data)
}

// answered hands an answer to the request that waits for it. The worker's mutex is held.
func (b *body) answered(answer *toolv1.WorkerAnswer) {
	for index, open := range b.requests {
		if open.request.Number == answer.Number {
			b.requests = append(b.requests[:index:index], b.requests[index+1:]...)
			open.answer <- answer
			return
		}
	}
}

// checkMessage refuses a message of a body that the service would not take: it would end the connection, which all bodies share.
func checkMessage(message proto.Message) error {
	encoded, err := proto.Marshal(message)
	if err != nil {
		return fmt.Errorf("a message of the tool cannot be sent: %w", err)
	}
	if len(encoded) > maxMessageBytes {
		return fmt.Errorf("a message of the tool has %d bytes, at most %d are allowed: return or report less, or write it as output", len(encoded), maxMessageBytes)
	}
	return nil
}

// clip limits a text, and makes it valid.
func clip(text string, length int) string {
	text = validText(text)
	if len(text) <= length {
		return text
	}
	return strings.ToValidUTF8(text[:length], "")
}

func validText(text string) string { return strings.ToValidUTF8(text, "\ufffd") }
