package toolgate

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"google.golang.org/protobuf/types/known/structpb"

	toolv1 "toolgate/gen/opencode/tool/v1"
)

// Definition is a tool that a worker brings. [Tool] makes it.
type Definition struct {
	declared *toolv1.WorkerTool
	// enter runs the body with the JSON of the input.
	enter func(ctx *Context, input []byte) (any, error)
	// plan returns the intended effect; nil if the tool does not plan.
	plan func(ctx *Context, input []byte) (*Plan, error)
	// problem is why the tool cannot be served.
	problem error
}

// ToolOption declares more about a tool.
type ToolOption interface{ apply(*Definition) }

type toolOption func(*Definition)

func (option toolOption) apply(definition *Definition) { option(definition) }

// Tool makes a tool of a body. The JSON Schema of its input is that of In. What the body returns is the text for the model if Out is
// a string, everything that it holds if Out is a [Result], and otherwise a value with the JSON Schema of Out.
func Tool[In, Out any](name, description string, body func(ctx *Context, in In) (Out, error), options ...ToolOption) Definition {
	definition := Definition{
		declared: &toolv1.WorkerTool{Name: name, Description: description},
		enter: func(ctx *Context, input []byte) (any, error) {
			var in In
			if err := json.Unmarshal(input, &in); err != nil {
				return nil, &invalidInput{err}
			}
			return body(ctx, in)
		},
	}
	definition.declared.InputSchema, definition.problem = schemaOf[In]()
	switch any(*new(Out)).(type) {
	case string, Result:
	default:
		schema, err := schemaOf[Out]()
		definition.declared.OutputSchema, definition.problem = schema, errors.Join(definition.problem, err)
	}
	for _, option := range options {
		option.apply(&definition)
	}
	return definition
}

func schemaOf[T any]() (*structpb.Struct, error) {
	schema, err := jsonschema.For[T](nil)
	if err != nil {
		return nil, fmt.Errorf("%v has no JSON Schema: %w", reflect.TypeFor[T](), err)
	}
	return structOf(schema)
}

// PermissionOption is what a call asks, with holes for fields of the input. The service fills it, also while no worker is connected.
type PermissionOption struct{ template *toolv1.PermissionTemplate }

// Permission asks for the permission of the tool's name with these patterns, such as {env}/{service}. Without it a call asks for its
// whole input.
func Permission(patterns ...string) PermissionOption {
	return PermissionOption{&toolv1.PermissionTemplate{Patterns: patterns}}
}

// Of asks for another permission, which the token of the worker must allow.
func (option PermissionOption) Of(permission string) PermissionOption {
	option.template.Permission = permission
	return option
}

// Always offers wildcards to approvers for "always", such as {env}/*.
func (option PermissionOption) Always(wildcards ...string) PermissionOption {
	option.template.Always = wildcards
	return option
}

func (option PermissionOption) apply(definition *Definition) {
	option.template.Permission = firstOf(option.template.Permission, definition.declared.Name)
	definition.declared.Permissions = append(definition.declared.Permissions, option.template)
}

// Plan is the intended effect of a call.
type Plan struct {
	// Title is a short line for people.
	Title string
	// Asks are what the call needs allowed, in addition to its permissions.
	Asks []Ask
	// Preview is shown to approvers as the word of the worker.
	Preview *toolv1.Preview
	// Binds is what an approval depends on in addition to the asks, such as the digest of a file: with another one, the call fails.
	Binds string
	// Timeout is the maximum duration of the run, where the input decides it.
	Timeout time.Duration
}

// Ask is an ask for a permission.
type Ask struct {
	// Permission is the tool's name, or a permission that the worker's token allows.
	Permission string
	Patterns   []string
	// Always are wildcards that are offered to approvers for "always".
	Always []string
	// Metadata is for user interfaces: anything that encodes to a JSON object.
	Metadata any
}

// Planned lets the worker plan each call: without side effects, within 10 s, perhaps several times.
func Planned[In any](plan func(ctx *Context, in In) (*Plan, error)) ToolOption {
	return toolOption(func(definition *Definition) {
		definition.declared.Plans = true
		definition.plan = func(ctx *Context, input []byte) (*Plan, error) {
			var in In
			if err := json.Unmarshal(input, &in); err != nil {
				return nil, err
			}
			return plan(ctx, in)
		}
	})
}

// TitleOf is a template of the title of a call, such as "{service} to {env}".
func TitleOf(template string) ToolOption {
	return toolOption(func(definition *Definition) { definition.declared.Title = template })
}

// Version is raised when behaviour changes and schemas do not.
func Version(version string) ToolOption {
	return toolOption(func(definition *Definition) { definition.declared.Version = version })
}

// Annotations are hints about the effects of the tool.
func Annotations(annotations *toolv1.ToolAnnotations) ToolOption {
	return toolOption(func(definition *Definition) { definition.declared.Annotations = annotations })
}

// Timeout is the maximum duration of a run where the call does not set one.
func Timeout(timeout time.Duration) ToolOption {
	return toolOption(func(definition *Definition) { definition.declared.TimeoutMs = uint32(timeout.Milliseconds()) })
}

// Queue is how long a call waits for a worker with room. Default: a minute.
func Queue(wait time.Duration) ToolOption {
	return toolOption(func(definition *Definition) {
		ms := uint32(wait.Milliseconds())
		definition.declared.QueueMs = &ms
	})
}

// MaxConcurrent bounds the bodies of the tool in one process.
func MaxConcurrent(count uint32) ToolOption {
	return toolOption(func(definition *Definition) { definition.declared.MaxConcurrent = count })
}

// PreferSession prefers the process of the session's last call.
func PreferSession() ToolOption {
	return toolOption(func(definition *Definition) {
		definition.declared.Affinity = toolv1.WorkerAffinity_WORKER_AFFINITY_PREFER_SESSION
	})
}

// MetadataKeys are the keys of the caller's metadata that the body gets. Default: none.
func MetadataKeys(keys ...string) ToolOption {
	return toolOption(func(definition *Definition) { definition.declared.MetadataKeys = keys })
}

// Result is everything that a body can return.
type Result struct {
	// Output is the text. Empty: what was written to [Context.Output].
	Output string
	// Title replaces the title, if it is not empty.
	Title string
	// Metadata replaces that of the progress: anything that encodes to a JSON object; nil: it stays.
	Metadata any
	// Note is appended behind the truncated output.
	Note string
	// Attachments are files.
	Attachments []Attachment
}

// Attachment is a file that a body returns.
type Attachment struct {
	MIME, Filename string
	Data           []byte
}

// ErrChanged is returned by a body that found that what was approved is no longer there, and that changed nothing.
var ErrChanged = errors.New("what was approved is no longer there")

// NoEffects marks the error of a body that changed nothing.
func NoEffects(err error) error { return &noEffects{err} }

type noEffects struct{ error }

func (e *noEffects) Unwrap() error { return e.error }

type invalidInput struct{ error }

// digest is what an approval of a plan is bound to.
func (plan *Plan) digest() []byte {
	text, err := json.Marshal([]any{plan.Title, plan.Asks, plan.Binds, plan.Timeout})
	if err != nil {
		text = []byte(err.Error())
	}
	sum := sha256.Sum256(text)
	return sum[:]
}

func (ask Ask) message() (*toolv1.WorkerAsk, error) {
	metadata, err := structOf(ask.Metadata)
	if err != nil {
		return nil, fmt.Errorf("the metadata of an ask cannot be sent: %w", err)
	}
	return &toolv1.WorkerAsk{Permission: ask.Permission, Patterns: ask.Patterns, Always: ask.Always, Metadata: metadata}, nil
}
