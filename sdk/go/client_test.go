package toolgate

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	toolv1 "toolgate/gen/opencode/tool/v1"
)

// The service of these tests is a real one: test/clients/go.test.ts starts it and runs them.

func clientAs(t *testing.T, principal string) *Client {
	t.Helper()
	if os.Getenv("TOOLGATE_URL") == "" {
		t.Skip("TOOLGATE_URL names no service: run npm run test:clients")
	}
	return NewClient(Options{Token: principal + "-token-for-tests"})
}

// answer gives an answer to the first request of a session, which need not exist yet.
func answer(t *testing.T, sessionID string, with Answer) {
	t.Helper()
	approver := clientAs(t, "approver")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	answered := make(chan struct{})
	t.Cleanup(func() {
		<-answered
		cancel()
	})
	go func() {
		defer close(answered)
		for ask, err := range approver.Asks(ctx, "") {
			if err != nil {
				t.Errorf("asks: %v", err)
				return
			}
			if ask.SessionId != sessionID {
				continue
			}
			if err := approver.Reply(ctx, ask, with); err != nil {
				t.Errorf("reply: %v", err)
			}
			return
		}
	}()
}

type command struct {
	Command string `json:"command"`
}

func TestACallReturnsItsResultAfterAnApproval(t *testing.T) {
	caller := clientAs(t, "caller")
	answer(t, "ses_go_call", Answer{Reply: Once, WholeCall: true})
	call := Call{Tool: "bash", Input: command{"echo hi"}, SessionID: "ses_go_call", CallID: "c1"}
	for range 2 { // the same ids attach
		completed, err := caller.Call(t.Context(), call)
		if err != nil || completed.Output != "hi\n" {
			t.Fatalf("got %q, %v", completed.GetOutput(), err)
		}
	}
}

func TestARefusedCallIsAnErrorWithReasonAndEffects(t *testing.T) {
	caller := clientAs(t, "caller")
	answer(t, "ses_go_refused", Answer{Reply: Reject, Message: "use make"})
	_, err := caller.Call(t.Context(), Call{Tool: "bash", Input: command{"echo no"}, SessionID: "ses_go_refused"})
	var failed *CallError
	if !errors.As(err, &failed) {
		t.Fatalf("got %v", err)
	}
	if failed.Reason != toolv1.ToolErrorReason_TOOL_ERROR_REASON_REJECTED ||
		failed.Effects != toolv1.ToolEffects_TOOL_EFFECTS_NONE || !strings.Contains(err.Error(), "use make") {
		t.Fatalf("got %v, %v, %v", failed.Reason, failed.Effects, err)
	}
}

func TestAStreamEndsWithTheTerminalState(t *testing.T) {
	caller := clientAs(t, "caller")
	answer(t, "ses_go_stream", Answer{Reply: Once, WholeCall: true})
	var seen []string
	for event, err := range caller.Stream(t.Context(), Call{Tool: "bash", Input: command{"echo hi"}, SessionID: "ses_go_stream"}) {
		if err != nil {
			t.Fatal(err)
		}
		switch kind := event.Event.(type) {
		case *toolv1.SessionEvent_Output:
			seen = append(seen, string(kind.Output.Data))
		case *toolv1.SessionEvent_Part:
			seen = append(seen, kind.Part.GetCompleted().GetStatus())
		}
	}
	if !slices.Equal(seen, []string{"", "", "hi\n", "completed"}) {
		t.Fatalf("got %q", seen)
	}
}

func TestTheEndOfTheContextEndsTheWait(t *testing.T) {
	caller := clientAs(t, "caller")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for event, err := range caller.Stream(ctx, Call{Tool: "bash", Input: command{"echo wait"}, SessionID: "ses_go_left"}) {
		if event.GetPermissionAsked() != nil {
			cancel()
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	part, err := caller.Call(t.Context(), Call{Tool: "echo", Input: map[string]any{"text": "on"}, SessionID: "ses_go_left"})
	if err != nil || part.Output != "on" {
		t.Fatalf("got %v, %v", part, err)
	}
}

func TestAServiceThatWasNeverReachedIsReportedAtOnce(t *testing.T) {
	client := NewClient(Options{URL: "http://127.0.0.1:9", Token: "none"})
	if _, err := client.Call(t.Context(), Call{Tool: "echo"}); !isUnreachable(err) {
		t.Fatalf("got %v", err)
	}
	for _, err := range client.Asks(t.Context(), "") {
		if !isUnreachable(err) {
			t.Fatalf("got %v", err)
		}
	}
}

func TestAServiceThatNeverAnswersIsReported(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_ = connection.Close()
		}
	}()
	other := httptest.NewUnstartedServer(nil)
	other.Config.ErrorLog = log.New(io.Discard, "", 0)
	other.EnableHTTP2 = true
	other.StartTLS()
	defer other.Close()
	for _, address := range []string{"http://" + listener.Addr().String(), other.URL} {
		_, err := NewClient(Options{URL: address, Token: "none"}).Call(t.Context(), Call{Tool: "echo"})
		if err == nil || !strings.Contains(err.Error(), "no service answers") {
			t.Errorf("%s: got %v", address, err)
		}
	}
}

func TestAnIntegerThatWouldBeRoundedIsRefusedWithItsField(t *testing.T) {
	client := NewClient(Options{URL: "http://127.0.0.1:9", Token: "none"})
	for _, rounded := range []int64{1<<53 + 1, -(1 << 60)} {
		input := map[string]any{"order": map[string]any{"ids": []int64{1 << 53, rounded}}}
		_, err := client.Call(t.Context(), Call{Tool: "echo", Input: input})
		if err == nil || !strings.Contains(err.Error(), "order.ids[1] is ") {
			t.Errorf("%d: got %v", rounded, err)
		}
	}
	if _, err := structOf(map[string]any{"far": 1e20, "near": 0.1, "most": 1e300}); err != nil {
		t.Error(err)
	}
}

func TestTheTokenOfALocalServiceIsForThisMachineAlone(t *testing.T) {
	data := t.TempDir()
	t.Setenv("TOOLGATE_DATA", data)
	if err := os.MkdirAll(filepath.Join(data, "tokens"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "tokens", "caller"), []byte("local\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for address, token := range map[string]string{
		"http://127.0.0.1:7420": "local", "http://localhost:7420": "local", "http://[::1]:7420": "local",
		"http://10.0.0.1:7420": "", "https://localhost.example.com": "", "not an address": "",
	} {
		if found := localToken(address); found != token {
			t.Errorf("%s: got %q", address, found)
		}
	}
}
