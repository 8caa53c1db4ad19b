package toolgate

import (
	"context"
	"fmt"
	"iter"

	"connectrpc.com/connect"

	toolv1 "toolgate/gen/opencode/tool/v1"
)

// Answer is an answer to a permission request.
type Answer struct {
	// Reply is Once, Always or Reject.
	Reply Reply
	// Message is advice for the model; only with Reject.
	Message string
	// OfferID is the offer to save; only with Always. Empty: the first one, which is the narrowest.
	OfferID string
	// Input replaces the arguments of the call: anything that encodes to a JSON object; only with Once.
	Input any
	// Answers are the values for each question of the request; only with Once.
	Answers [][]string
	// WholeCall answers all open requests of the call.
	WholeCall bool
	// Shown is what a person saw of the request: Whole, all of its view with the texts of its files, or Partial. Otherwise it is
	// recorded as unknown.
	Shown Shown
}

// Shown is what a person saw of a permission request.
type Shown = toolv1.Shown

const (
	// Whole is all of the view.
	Whole = toolv1.Shown_SHOWN_WHOLE
	// Partial is a part of the view.
	Partial = toolv1.Shown_SHOWN_PARTIAL
)

// Reply is what an approver decides.
type Reply = toolv1.PermissionReply

const (
	// Once approves this call only.
	Once = toolv1.PermissionReply_PERMISSION_REPLY_ONCE
	// Always approves, and saves an offer as a grant.
	Always = toolv1.PermissionReply_PERMISSION_REPLY_ALWAYS
	// Reject refuses: the call ends.
	Reject = toolv1.PermissionReply_PERMISSION_REPLY_REJECT
)

// Asks yields the open permission requests and new ones as they come, across restarts of the service, each once. sessionID limits
// them to a session and its descendants; empty: every session that the token may see.
func (c *Client) Asks(ctx context.Context, sessionID string) iter.Seq2[*toolv1.PermissionRequest, error] {
	return func(yield func(*toolv1.PermissionRequest, error) bool) {
		open, snapshot := map[string]bool{}, map[string]bool{}
		err := resumed(ctx, c, func() (*connect.ServerStreamForClient[toolv1.WatchPermissionsResponse], error) {
			// Each stream starts with all requests that are open: the others of an earlier stream are settled.
			snapshot = map[string]bool{}
			return c.Permissions.WatchPermissions(ctx, connect.NewRequest(&toolv1.WatchPermissionsRequest{SessionId: sessionID}))
		}, func(message *toolv1.WatchPermissionsResponse) bool {
			if message.SnapshotEnd {
				open = snapshot
			}
			if settled := message.GetEvent().GetPermissionSettled(); settled != nil {
				delete(open, settled.PermissionId)
			}
			ask := message.GetEvent().GetPermissionAsked()
			if ask == nil {
				return true
			}
			isKnown := open[ask.Id]
			snapshot[ask.Id], open[ask.Id] = true, true
			return isKnown || yield(ask, nil)
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

// Reply answers a permission request as it was shown. When it returns nil, this answer has won. A lost reply is repeated until it
// is answered.
func (c *Client) Reply(ctx context.Context, ask *toolv1.PermissionRequest, answer Answer) error {
	input, err := structOf(answer.Input)
	if err != nil {
		return fmt.Errorf("the input of the answer cannot be sent: %w", err)
	}
	if answer.Shown == toolv1.Shown_SHOWN_UNSPECIFIED {
		answer.Shown = toolv1.Shown_SHOWN_UNKNOWN
	}
	response := &toolv1.PermissionResponse{
		SessionId: ask.SessionId, PermissionId: ask.Id, ExpectedDigest: ask.Digest, ReplyId: randomID(),
		Reply: answer.Reply, Message: answer.Message, OfferId: answer.OfferID, Input: input, WholeCall: answer.WholeCall, Shown: answer.Shown,
	}
	for _, values := range answer.Answers {
		response.Answers = append(response.Answers, &toolv1.QuestionAnswer{Values: values})
	}
	_, err = untilAnswered(ctx, c, func() (*connect.Response[toolv1.Empty], error) {
		return c.Permissions.RespondToPermission(ctx, connect.NewRequest(response))
	})
	return err
}
