// Command echo is a worker whose tool `echo_go` returns its text.
package main

import (
	"context"
	"log"

	"toolgate"
)

type input struct {
	Text string `json:"text"`
}

func main() {
	echo := toolgate.Tool("echo_go", "Returns the text.", func(_ *toolgate.Context, in input) (string, error) {
		return in.Text, nil
	}, toolgate.Permission("{text}"))
	if err := toolgate.ServeWith(context.Background(), toolgate.WorkerOptions{Capacity: 64}, echo); err != nil {
		log.Fatal(err)
	}
}
