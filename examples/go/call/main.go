// The least that works; ../main.go is the whole of it.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/structpb"

	toolv1 "example/toolgate/gen/opencode/tool/v1"
	"example/toolgate/gen/opencode/tool/v1/toolv1connect"
)

func main() {
	tools := toolv1connect.NewToolServiceClient(http.DefaultClient, os.Getenv("TOOLGATE_URL"))
	input := &structpb.Struct{Fields: map[string]*structpb.Value{"text": structpb.NewStringValue("hello")}}
	request := connect.NewRequest(&toolv1.CallToolRequest{Tool: "echo", Input: input})
	request.Header().Set("Authorization", "Bearer "+os.Getenv("TOOLGATE_TOKEN"))
	answer, err := tools.CallTool(context.Background(), request)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.Msg.Part.GetCompleted().GetOutput())
}
