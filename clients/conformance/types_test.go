package conformance

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
)

// The declarations name the libraries that they need: an application may compile for an
// older JavaScript, without the types of Node, and look into declarations as well.
func TestDeclarationsNeedNoSettings(t *testing.T) {
	plain := filepath.Join(folder, "plain")
	if err := os.Mkdir(plain, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"package.json":  `{"type": "module"}`,
		"tsconfig.json": `{"compilerOptions": {"target": "ES2020", "lib": ["ES2020", "DOM"], "types": [], "module": "NodeNext", "strict": true, "noEmit": true}}`,
		"plain.ts":      `import { Client } from "wirefence"; export const client = new Client("http://127.0.0.1:9433");`,
	} {
		if err := os.WriteFile(filepath.Join(plain, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tsc := filepath.Join(servers.CacheDir(), "typescript", "node_modules", "typescript", "bin", "tsc")
	if err := command("node", tsc, "-p", plain); err != nil {
		t.Error(err)
	}
}
