// Command worker serves the fixed tools of the worker kit, with the Go SDK.
package main

import (
	"context"
	"log"
	"os"
	"path/filepath"
	"time"

	"toolgate"
)

var folder = os.Getenv("TOOLGATE_KIT")

func note(line string) {
	ledger, err := os.OpenFile(filepath.Join(folder, "ledger"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		log.Fatal(err)
	}
	defer ledger.Close()
	if _, err := ledger.WriteString(line + "\n"); err != nil {
		log.Fatal(err)
	}
}

func versionOf(text string) string {
	version, _ := os.ReadFile(filepath.Join(folder, "version-"+text))
	return string(version)
}

func letters(size int) []byte {
	made := make([]byte, size)
	for index := range made {
		made[index] = 'a' + byte(index%26)
	}
	return made
}

type Text struct {
	Text string `json:"text"`
}

type Size struct {
	Text      string `json:"text"`
	Bytes     int    `json:"bytes"`
	FileBytes int    `json:"file_bytes"`
}

type Request struct {
	Text string `json:"text"`
	Tool string `json:"tool"`
}

func echo(_ *toolgate.Context, in Text) (string, error) {
	note("entered " + in.Text)
	return in.Text, nil
}

func write(ctx *toolgate.Context, in Size) (toolgate.Result, error) {
	note("entered " + in.Text)
	var result toolgate.Result
	output := letters(in.Bytes)
	for len(output) > 0 {
		size := min(len(output), 16_384)
		if _, err := ctx.Output().Write(output[:size]); err != nil {
			return result, err
		}
		output = output[size:]
	}
	if in.FileBytes > 0 {
		result.Attachments = []toolgate.Attachment{{MIME: "text/plain", Filename: in.Text + ".txt", Data: letters(in.FileBytes)}}
	}
	return result, nil
}

func wait(ctx *toolgate.Context, in Text) (string, error) {
	note("entered " + in.Text)
	for {
		if _, err := os.Stat(filepath.Join(folder, "release-"+in.Text)); err == nil {
			return in.Text, nil
		}
		select {
		case <-ctx.Done():
			note("stopped " + in.Text)
			return "", context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func ask(ctx *toolgate.Context, in Request) (string, error) {
	note("entered " + in.Text)
	var err error
	if in.Tool == "" {
		err = ctx.Ask("kit_traffic", in.Text)
	} else {
		_, err = ctx.Calls(false, toolgate.ChildCall{Tool: in.Tool, Input: map[string]any{}})
	}
	if ctx.Err() != nil {
		note("stopped " + in.Text)
		return "", err
	}
	if err != nil {
		return err.Error(), nil
	}
	return in.Text, nil
}

func plan(ctx *toolgate.Context, in Text) (string, error) {
	note("entered " + in.Text)
	return in.Text + " " + versionOf(in.Text), nil
}

func planned(_ *toolgate.Context, in Text) (*toolgate.Plan, error) {
	asks := []toolgate.Ask{{Permission: "kit_version", Patterns: []string{in.Text + " " + versionOf(in.Text)}}}
	return &toolgate.Plan{Title: in.Text, Asks: asks}, nil
}

func main() {
	err := toolgate.Serve(context.Background(),
		toolgate.Tool("kit_echo", "Returns the text.", echo, toolgate.Permission("{text}")),
		toolgate.Tool("kit_write", "Writes output and a file.", write),
		toolgate.Tool("kit_wait", "Waits until it is released.", wait),
		toolgate.Tool("kit_poll", "Waits until it is released.", wait),
		toolgate.Tool("kit_ask", "Asks, or makes a call.", ask),
		toolgate.Tool("kit_plan", "Returns the version that was approved.", plan, toolgate.Planned(planned)))
	if err != nil {
		log.Fatal(err)
	}
}
