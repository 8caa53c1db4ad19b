// Package toolgate makes calls of tools through a Toolgate service, answers permission requests, and brings tools.
//
// A [Client] makes calls and answers. [Tool] and [Serve] bring tools whose bodies run in this process.
package toolgate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"iter"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	toolv1 "toolgate/gen/opencode/tool/v1"
	"toolgate/gen/opencode/tool/v1/toolv1connect"
)

// Client is a connection to a service. Its fields are the generated clients of the services. A lost connection is opened again.
type Client struct {
	Tools       toolv1connect.ToolServiceClient
	Sessions    toolv1connect.SessionServiceClient
	Permissions toolv1connect.PermissionServiceClient
	// isReached is true once the service has answered.
	isReached atomic.Bool
}

// Options name a service and the credentials for it.
type Options struct {
	// URL is the address of the service. Empty: TOOLGATE_URL, otherwise http://127.0.0.1:7420.
	URL string
	// Token is sent with each request. Empty: TOOLGATE_TOKEN, otherwise the generated caller token of a service on this machine.
	Token string
	// HTTPClient carries the requests, for own certificates. It needs HTTP/2. Nil: one with the system's certificates.
	HTTPClient *http.Client
}

// NewClient makes a client. It sends nothing before the first request.
func NewClient(options Options) *Client {
	url := options.url()
	httpClient, with := options.connection(firstOf(options.token(), localToken(url)))
	return &Client{
		Tools:       toolv1connect.NewToolServiceClient(httpClient, url, with...),
		Sessions:    toolv1connect.NewSessionServiceClient(httpClient, url, with...),
		Permissions: toolv1connect.NewPermissionServiceClient(httpClient, url, with...),
	}
}

// url is the address of the service; HOST:PORT alone means plain HTTP.
func (options Options) url() string {
	url := firstOf(options.URL, os.Getenv("TOOLGATE_URL"), "http://127.0.0.1:7420")
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	return strings.TrimRight(url, "/")
}

func (options Options) token() string { return firstOf(options.Token, os.Getenv("TOOLGATE_TOKEN")) }

func (options Options) connection(token string) (*http.Client, []connect.ClientOption) {
	httpClient := options.HTTPClient
	if httpClient == nil {
		httpClient = newHTTPClient()
	}
	return httpClient, []connect.ClientOption{connect.WithGRPC(), connect.WithInterceptors(bearer(token))}
}

// localToken is the caller token that a service on this machine generated; empty for an address of another one.
func localToken(address string) string {
	parsed, err := url.Parse(address)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(parsed.Hostname()); parsed.Hostname() != "localhost" && !ip.IsLoopback() {
		return ""
	}
	data := os.Getenv("TOOLGATE_DATA")
	if data == "" {
		home, _ := os.UserHomeDir()
		data = filepath.Join(firstOf(os.Getenv("XDG_DATA_HOME"), filepath.Join(home, ".local", "share")), "toolgate")
	}
	token, _ := os.ReadFile(filepath.Join(data, "tokens", "caller"))
	return strings.TrimSpace(string(token))
}

// newHTTPClient makes a client for HTTP/2, without TLS too. Its pings find a connection that died silently.
func newHTTPClient() *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		Protocols:           protocols,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: 20 * time.Second, PingTimeout: 10 * time.Second},
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     90 * time.Second,
	}}
}

// Call is a call of a tool.
type Call struct {
	// Tool is the tool's name.
	Tool string
	// Input is the arguments: anything that encodes to a JSON object. Integers beyond 2^53 are refused: pass them as text.
	Input any
	// SessionID is the session; it is created if it does not exist. Empty: a new one.
	SessionID string
	// CallID names the call in its session: a program that starts again with the same ids attaches to its call. Empty: a new one.
	CallID string
	// ParentSessionID is the session from which a child session was started.
	ParentSessionID string
	// Workspace is NAME or NAME/directory, for a session that is created.
	Workspace string
	// Agent is the agent that calls. Empty: the session's.
	Agent string
	// Timeout is the maximum duration of the run, without the wait for an approver. 0: the tool's.
	Timeout time.Duration
	// Metadata is data that is stored with the call: anything that encodes to a JSON object.
	Metadata any
}

// CallError is a call that ended without a result.
type CallError struct {
	// Part is the call.
	Part *toolv1.ToolPart
	// Reason is why.
	Reason toolv1.ToolErrorReason
	// Effects says if the tool may have changed anything.
	Effects toolv1.ToolEffects
}

func (e *CallError) Error() string {
	reason := strings.TrimPrefix(e.Reason.String(), "TOOL_ERROR_REASON_")
	effects := strings.TrimPrefix(e.Effects.String(), "TOOL_EFFECTS_")
	return fmt.Sprintf("%s (%s) ended with %s, effects %s: %s", e.Part.Tool, e.Part.CallId, reason, effects, e.Part.GetError().Error)
}

// Call makes a call and waits for its end, across restarts of the service. A call that ends without a result is a [*CallError].
// The end of the context ends the wait; the call goes on.
func (c *Client) Call(ctx context.Context, call Call) (*toolv1.ToolStateCompleted, error) {
	request, err := c.name(ctx, call)
	if err != nil {
		return nil, err
	}
	for {
		response, err := untilAnswered(ctx, c, func() (*connect.Response[toolv1.CallToolResponse], error) {
			return c.Tools.CallTool(ctx, connect.NewRequest(request))
		})
		if err != nil {
			return nil, err
		}
		part := response.Msg.GetPart()
		if completed := part.GetCompleted(); completed != nil {
			return completed, nil
		}
		if failed := part.GetError(); failed != nil {
			return nil, &CallError{Part: part, Reason: failed.Reason, Effects: failed.Effects}
		}
	}
}

// Stream makes a call and yields its events up to its terminal state, across restarts of the service, each once. A failed call is
// an event, not an error.
func (c *Client) Stream(ctx context.Context, call Call) iter.Seq2[*toolv1.SessionEvent, error] {
	return func(yield func(*toolv1.SessionEvent, error) bool) {
		named, err := c.name(ctx, call)
		if err != nil {
			yield(nil, err)
			return
		}
		request := &toolv1.ExecuteToolRequest{
			SessionId: named.SessionId, CallId: named.CallId, Tool: named.Tool, Input: named.Input, Agent: named.Agent,
			TimeoutMs: named.TimeoutMs, Metadata: named.Metadata, ExpectedStoreId: named.ExpectedStoreId,
		}
		err = resumed(ctx, c, func() (*connect.ServerStreamForClient[toolv1.ExecuteToolResponse], error) {
			return c.Tools.ExecuteTool(ctx, connect.NewRequest(request))
		}, func(message *toolv1.ExecuteToolResponse) bool {
			request.AfterSeq = message.LastSeq
			// Without an event it is a heartbeat.
			return message.Event == nil || yield(message.Event, nil) && !isTerminal(message.Event)
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

func isTerminal(event *toolv1.SessionEvent) bool {
	part := event.GetPart()
	return part.GetCompleted() != nil || part.GetError() != nil
}

// name gives a call its ids, and creates its session if it does not exist, so that each later request may be repeated.
func (c *Client) name(ctx context.Context, call Call) (*toolv1.CallToolRequest, error) {
	input, err := structOf(call.Input)
	if err != nil {
		return nil, fmt.Errorf("the input of %s cannot be sent: %w", call.Tool, err)
	}
	metadata, err := structOf(call.Metadata)
	if err != nil {
		return nil, fmt.Errorf("the metadata of the call of %s cannot be sent: %w", call.Tool, err)
	}
	session := &toolv1.CreateSessionRequest{
		SessionId: firstOf(call.SessionID, "ses_"+randomID()), ParentSessionId: call.ParentSessionID, Workspace: call.Workspace,
	}
	created, err := untilAnswered(ctx, c, func() (*connect.Response[toolv1.CreateSessionResponse], error) {
		return c.Sessions.CreateSession(ctx, connect.NewRequest(session))
	})
	if err != nil {
		return nil, err
	}
	wait := uint32(60_000)
	return &toolv1.CallToolRequest{
		SessionId: session.SessionId, CallId: firstOf(call.CallID, "call_"+randomID()), Tool: call.Tool, Input: input,
		Agent: call.Agent, TimeoutMs: uint32(call.Timeout.Milliseconds()), Metadata: metadata,
		ExpectedStoreId: created.Msg.StoreId, WaitMs: &wait,
	}, nil
}

func randomID() string {
	random := make([]byte, 16)
	_, _ = rand.Read(random)
	return hex.EncodeToString(random)
}

func firstOf(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}

// bearer sends a token with each request, if there is one.
type bearer string

func (token bearer) addTo(header http.Header) {
	if token != "" {
		header.Set("Authorization", "Bearer "+string(token))
	}
}

func (token bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		token.addTo(request.Header())
		return next(ctx, request)
	}
}

func (token bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		token.addTo(conn.RequestHeader())
		return conn
	}
}

func (bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
