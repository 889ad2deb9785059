// Command generate writes the dashboards for Grafana into deploy/mixin/dashboards. It is
// run by `go generate ./deploy/mixin`.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	for name, d := range dashboards() {
		text, err := encode(d)
		if err == nil {
			err = os.WriteFile(filepath.Join("dashboards", name), text, 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "generate:", err)
			os.Exit(1)
		}
	}
}

// dashboards are the dashboards by the names of their files.
func dashboards() map[string]dashboard {
	return map[string]dashboard{"fleet.json": fleet(), "resource.json": resource()}
}

func encode(d dashboard) ([]byte, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(d)
	return text.Bytes(), err
}
