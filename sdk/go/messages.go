package toolgate

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	toolv1 "toolgate/gen/opencode/tool/v1"
)

const (
	planLimit = 10 * time.Second
	// maxKnown is how many assignments are remembered after their end, so that a late message about one is answered truthfully.
	maxKnown = 100_000
)

// handle handles a message of the service; it returns false if the next connection is to be opened.
func (w *worker) handle(response *toolv1.WorkResponse) bool {
	switch message := response.Message.(type) {
	case *toolv1.WorkResponse_Plan:
		go w.planned(message.Plan)
	case *toolv1.WorkResponse_Start:
		w.started(message.Start)
	case *toolv1.WorkResponse_Cancel:
		w.cancelled(message.Cancel)
	case *toolv1.WorkResponse_Probe:
		w.probed(message.Probe)
	case *toolv1.WorkResponse_Receipt:
		w.withBody(message.Receipt.Assignment, func(body *body) { body.receive(message.Receipt.Stored) })
	case *toolv1.WorkResponse_Answer:
		w.withBody(message.Answer.Assignment, func(body *body) { body.answered(message.Answer) })
	case *toolv1.WorkResponse_Ended:
		w.ended(message.Ended.Assignment)
	case *toolv1.WorkResponse_Leave:
		if !message.Leave.Stop {
			return false
		}
		w.askedToStop()
	}
	// A later version of the service may send more.
	return true
}

func (w *worker) withBody(assignment string, do func(*body)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if body := w.bodies[assignment]; body != nil {
		do(body)
	}
}

// started enters a body, once: the same assignment again has no effect.
func (w *worker) started(start *toolv1.WorkerStart) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, isKnown := w.known[start.Assignment]; isKnown {
		return
	}
	tool, isOurs := w.tools[start.GetCall().GetTool()]
	isEntered := isOurs && !w.isDraining
	w.remember(start.Assignment, isEntered)
	ctx, cancel := context.WithCancelCause(context.Background())
	made := &body{
		worker: w, assignment: start.Assignment, start: start, ctx: ctx, cancel: cancel,
		isEntered: isEntered, sent: map[uint32]uint64{},
	}
	w.bodies[start.Assignment] = made
	if isEntered {
		go made.run(tool)
		return
	}
	why := "this process stops"
	if !isOurs {
		why = fmt.Sprintf("this process has no tool %s", start.GetCall().GetTool())
	}
	made.result = &toolv1.WorkerResult{Outcome: &toolv1.WorkerResult_NotEntered{NotEntered: why}}
	made.send(&toolv1.WorkerReport{Report: &toolv1.WorkerReport_Result{Result: made.result}})
}

func (w *worker) cancelled(cancel *toolv1.WorkerCancel) {
	w.mu.Lock()
	body := w.bodies[cancel.Assignment]
	w.mu.Unlock()
	if body != nil {
		body.stop(errors.New(firstOf(cancel.Message, "the call was cancelled")), time.Duration(cancel.GraceMs)*time.Millisecond)
	}
}

func (w *worker) probed(assignment string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	isEntered, isKnown := w.known[assignment]
	if !isKnown {
		// False is a promise: if the start of this assignment is still under way, it has no effect.
		w.remember(assignment, false)
	}
	known := &toolv1.WorkerKnown{Assignment: assignment, Entered: isEntered}
	w.outbox.push(&toolv1.WorkRequest{Message: &toolv1.WorkRequest_Known{Known: known}})
}

// remember records if a body was entered, or never will be. The mutex is held.
func (w *worker) remember(assignment string, isEntered bool) {
	w.known[assignment] = isEntered
	w.order = append(w.order, assignment)
	for len(w.order) > maxKnown && w.bodies[w.order[0]] == nil {
		delete(w.known, w.order[0])
		w.order = w.order[1:]
	}
}

func (w *worker) ended(assignment string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	body := w.bodies[assignment]
	if body == nil {
		return
	}
	body.isOver = true
	body.cancel(errOver)
	delete(w.bodies, assignment)
	w.changed.Broadcast()
	w.leaveIfDrained()
}

// planned answers what a call would do.
func (w *worker) planned(request *toolv1.WorkerPlan) {
	planned := &toolv1.WorkerPlanned{PlanId: request.PlanId}
	err := w.plan(request, planned)
	if err == nil {
		err = checkMessage(planned)
	}
	if err != nil {
		planned = &toolv1.WorkerPlanned{PlanId: request.PlanId, Problem: clip(err.Error(), maxErrorBytes)}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outbox.push(&toolv1.WorkRequest{Message: &toolv1.WorkRequest_Planned{Planned: planned}})
}

func (w *worker) plan(request *toolv1.WorkerPlan, planned *toolv1.WorkerPlanned) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("the plan panicked: %v\n%s", cause, debug.Stack())
		}
	}()
	tool, isOurs := w.tools[request.GetCall().GetTool()]
	if !isOurs || tool.plan == nil {
		return fmt.Errorf("this process plans no tool %s", request.GetCall().GetTool())
	}
	input, err := inputOf(request.Call)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), planLimit)
	defer cancel()
	plan, err := tool.plan(&Context{Context: ctx, Call: request.Call}, input)
	if err != nil {
		return err
	}
	planned.Title, planned.Preview, planned.Detail = clip(plan.Title, maxTitleBytes), plan.Preview, plan.digest()
	planned.TimeoutMs = uint32(plan.Timeout.Milliseconds())
	for _, ask := range plan.Asks {
		message, err := ask.message()
		if err != nil {
			return err
		}
		planned.Asks = append(planned.Asks, message)
	}
	return nil
}

// firstText is the first field of a message, if it is a text. Messages of google.rpc are not generated here: a second registration
// of them would collide with that of other modules.
func firstText(message []byte) string {
	number, kind, length := protowire.ConsumeTag(message)
	if length < 0 || number != 1 || kind != protowire.BytesType {
		return ""
	}
	text, _ := protowire.ConsumeBytes(message[length:])
	return string(text)
}
