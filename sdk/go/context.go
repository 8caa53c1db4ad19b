package toolgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	toolv1 "toolgate/gen/opencode/tool/v1"
)

// Context is what a body knows of its call. It ends when the call is cancelled, at its deadline, and when the service was away for
// too long; [context.Cause] names the cause.
type Context struct {
	context.Context
	// Call is the call, without its input.
	Call *toolv1.WorkerCall
	// Attempt is 1, or more for a tool that may be repeated.
	Attempt uint32
	body    *body
}

// Update replaces what watchers see.
type Update func(*toolv1.WorkerProgress) error

// Title replaces the title.
func Title(title string) Update {
	return func(progress *toolv1.WorkerProgress) error {
		title = clip(title, maxTitleBytes)
		progress.Title = &title
		return nil
	}
}

// Metadata replaces the metadata: anything that encodes to a JSON object.
func Metadata(metadata any) Update {
	return func(progress *toolv1.WorkerProgress) (err error) {
		progress.Metadata, err = structOf(metadata)
		return err
	}
}

var errPlan = errors.New("a plan has no effects: call this in the body")

// Metadata replaces the title and the metadata that watchers see.
func (ctx *Context) Metadata(updates ...Update) error {
	if ctx.body == nil {
		return errPlan
	}
	progress := new(toolv1.WorkerProgress)
	for _, update := range updates {
		if err := update(progress); err != nil {
			return fmt.Errorf("the metadata cannot be sent: %w", err)
		}
	}
	return ctx.body.progressed(progress)
}

// Output appends to the output of the call. A write waits while too much of it is not stored.
func (ctx *Context) Output() io.Writer { return outputWriter{ctx} }

// Printf appends a formatted text to the output of the call.
func (ctx *Context) Printf(format string, values ...any) error {
	_, err := fmt.Fprintf(ctx.Output(), format, values...)
	return err
}

type outputWriter struct{ ctx *Context }

func (writer outputWriter) Write(data []byte) (int, error) {
	if writer.ctx.body == nil {
		return 0, errPlan
	}
	if err := writer.ctx.body.write(0, data); err != nil {
		return 0, err
	}
	return len(data), nil
}

// Ask asks a person for a permission while the body runs. A refusal ends the call, and the context.
func (ctx *Context) Ask(permission string, patterns ...string) error {
	return ctx.AskFor(Ask{Permission: permission, Patterns: patterns})
}

// AskFor is Ask with all that an ask can have.
func (ctx *Context) AskFor(ask Ask) error {
	message, err := ask.message()
	if err != nil {
		return err
	}
	_, err = ctx.request(&toolv1.WorkerBodyRequest{Request: &toolv1.WorkerBodyRequest_Ask{Ask: message}})
	return err
}

// ChildCall is a call that a body makes.
type ChildCall struct {
	Tool string
	// Input is the arguments: anything that encodes to a JSON object.
	Input any
}

// Calls makes calls at the same time, for the caller of this one. The token of the worker must allow their tools.
func (ctx *Context) Calls(atomic bool, calls ...ChildCall) ([]*toolv1.WorkerEndedCall, error) {
	children := &toolv1.WorkerChildCalls{Atomic: atomic}
	for _, call := range calls {
		input, err := structOf(call.Input)
		if err != nil {
			return nil, fmt.Errorf("the input of %s cannot be sent: %w", call.Tool, err)
		}
		children.Calls = append(children.Calls, &toolv1.WorkerChildCall{Tool: call.Tool, Input: input})
	}
	answer, err := ctx.request(&toolv1.WorkerBodyRequest{Request: &toolv1.WorkerBodyRequest_Calls{Calls: children}})
	return answer.GetCalls().GetCalls(), err
}

// State reads a value that tools stored for the session into the target; false if there is none.
func (ctx *Context) State(name string, target any) (bool, error) {
	answer, err := ctx.request(&toolv1.WorkerBodyRequest{Request: &toolv1.WorkerBodyRequest_GetState{GetState: name}})
	if err != nil || answer.GetState() == nil {
		return false, err
	}
	text, err := protojson.Marshal(answer.GetState())
	if err != nil {
		return false, err
	}
	return true, json.Unmarshal(text, target)
}

// SetState stores a value for the session, at most 64 KiB as JSON.
func (ctx *Context) SetState(name string, value any) error {
	text, err := jsonOf(value)
	if err != nil {
		return err
	}
	state := &toolv1.WorkerState{Name: name, Value: new(structpb.Value)}
	if err := state.Value.UnmarshalJSON(text); err != nil {
		return err
	}
	_, err = ctx.request(&toolv1.WorkerBodyRequest{Request: &toolv1.WorkerBodyRequest_SetState{SetState: state}})
	return err
}

func (ctx *Context) request(request *toolv1.WorkerBodyRequest) (*toolv1.WorkerAnswer, error) {
	if ctx.body == nil {
		return nil, errPlan
	}
	answer, err := ctx.body.request(request)
	if err == nil && answer.GetProblem() != "" {
		err = errors.New(answer.GetProblem())
	}
	return answer, err
}
