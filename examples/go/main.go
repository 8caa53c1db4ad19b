// Runs a command through Toolgate as an agent, and approves it as a person:
//
//	go run . 'git status' [CALL_ID]
//
// Run it twice: the second run attaches to the call of the first, prints the same, and runs nothing. See ../README.md.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/structpb"

	toolv1 "example/toolgate/gen/opencode/tool/v1"
	"example/toolgate/gen/opencode/tool/v1/toolv1connect"
)

const session = "ses_example_go"

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: go run . COMMAND [CALL_ID]")
	}
	command, callID := os.Args[1], "call_1"
	if len(os.Args) > 2 {
		callID = os.Args[2]
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	agent, person := as("TOOLGATE_CALLER_TOKEN"), as("TOOLGATE_APPROVER_TOKEN")

	created, err := toolv1connect.NewSessionServiceClient(http.DefaultClient, url(), agent).
		CreateSession(ctx, connect.NewRequest(&toolv1.CreateSessionRequest{SessionId: session}))
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		if err := answerAsPerson(ctx, toolv1connect.NewPermissionServiceClient(http.DefaultClient, url(), person)); err != nil {
			log.Fatal(err)
		}
	}()
	tools := toolv1connect.NewToolServiceClient(http.DefaultClient, url(), agent)
	if err := runAsAgent(ctx, tools, created.Msg.StoreId, command, callID); err != nil {
		log.Fatal(err)
	}
}

// runAsAgent runs a call and prints its events, across lost connections, to its end.
func runAsAgent(ctx context.Context, tools toolv1connect.ToolServiceClient, storeID, command, callID string) error {
	input, err := structpb.NewStruct(map[string]any{"command": command, "description": "Run a command"})
	if err != nil {
		return err
	}
	// Both ids are ours, so the same request again attaches to the call; in another store it is refused.
	request := &toolv1.ExecuteToolRequest{
		SessionId: session, CallId: callID, Tool: "bash", Input: input, ExpectedStoreId: storeID,
	}
	for {
		stream, err := tools.ExecuteTool(ctx, connect.NewRequest(request))
		for err == nil && stream.Receive() {
			if event := stream.Msg().Event; event != nil { // otherwise it is a heartbeat
				printEvent(event)
			}
			request.AfterSeq = stream.Msg().LastSeq
		}
		if err == nil {
			err = stream.Err()
		}
		if err == nil {
			return nil
		}
		if err := pauseOrFail(err, fmt.Sprintf("going on after #%d", request.AfterSeq)); err != nil {
			return err
		}
	}
}

// answerAsPerson approves whatever the session asks, until the context ends.
func answerAsPerson(ctx context.Context, permissions toolv1connect.PermissionServiceClient) error {
	for {
		// Each stream starts with all open asks, so after a cut nothing is missed.
		stream, err := permissions.WatchPermissions(ctx, connect.NewRequest(&toolv1.WatchPermissionsRequest{SessionId: session}))
		for err == nil && stream.Receive() {
			if ask := stream.Msg().GetEvent().GetPermissionAsked(); ask != nil {
				err = approve(ctx, permissions, ask)
			}
		}
		if err == nil {
			err = stream.Err()
		}
		if ctx.Err() != nil {
			return nil
		}
		if err := pauseOrFail(err, "watching again"); err != nil {
			return err
		}
	}
}

func approve(ctx context.Context, permissions toolv1connect.PermissionServiceClient, ask *toolv1.PermissionRequest) error {
	fmt.Printf("person: %s %s may run once\n", ask.Permission, strings.Join(ask.Display, " "))
	_, err := permissions.RespondToPermission(ctx, connect.NewRequest(&toolv1.PermissionResponse{
		SessionId:      ask.SessionId,
		PermissionId:   ask.Id,
		Reply:          toolv1.PermissionReply_PERMISSION_REPLY_ONCE,
		ExpectedDigest: ask.Digest, // what was shown is what is approved
	}))
	if connect.CodeOf(err) == connect.CodeFailedPrecondition {
		fmt.Println("person:", err) // somebody else was first
		return nil
	}
	return err
}

func printEvent(event *toolv1.SessionEvent) {
	switch kind := event.Event.(type) {
	case *toolv1.SessionEvent_Part:
		fmt.Printf("#%d %s\n", event.Seq, stateOf(kind.Part))
	case *toolv1.SessionEvent_Output:
		fmt.Printf("#%d output: %s\n", event.Seq, strings.TrimRight(string(kind.Output.Data), "\n"))
	case *toolv1.SessionEvent_PermissionAsked:
		fmt.Printf("#%d asks: %s\n", event.Seq, kind.PermissionAsked.Permission)
	case *toolv1.SessionEvent_PermissionSettled:
		fmt.Printf("#%d answered by %s\n", event.Seq, kind.PermissionSettled.By)
	}
}

func stateOf(part *toolv1.ToolPart) string {
	switch part.State.(type) {
	case *toolv1.ToolPart_Pending:
		return "pending"
	case *toolv1.ToolPart_Running:
		return "running"
	case *toolv1.ToolPart_Completed:
		return "completed"
	default:
		return "error"
	}
}

// pauseOrFail lets a lost connection, which no server reported, and a server that restarts pass; anything else is an answer.
func pauseOrFail(err error, what string) error {
	if connect.IsWireError(err) && connect.CodeOf(err) != connect.CodeUnavailable {
		return err
	}
	fmt.Fprintf(os.Stderr, "connection lost; %s\n", what)
	time.Sleep(time.Second)
	return nil
}

func url() string {
	if url := os.Getenv("TOOLGATE_URL"); url != "" {
		return url
	}
	return "http://127.0.0.1:7420"
}

// as sends the token of an environment variable with each request.
func as(variable string) connect.ClientOption {
	return connect.WithInterceptors(bearer(os.Getenv(variable)))
}

type bearer string

func (token bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		request.Header().Set("Authorization", "Bearer "+string(token))
		return next(ctx, request)
	}
}

func (token bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set("Authorization", "Bearer "+string(token))
		return conn
	}
}

func (bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
