// Package console serves the console: pages for a browser that show data of the API on the
// same listener. They are in the binary, and load nothing from other hosts.
package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
)

//go:embed static
var embedded embed.FS

// Prefix is the path under which the console is.
const Prefix = "/console/"

// policy lets a page load and request nothing from other hosts, and run no inline code. So
// the name of a resource can't become code (Content Security Policy Level 3).
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// file is one of the console.
type file struct {
	name string
	body []byte
	kind string // Content-Type
	tag  string // ETag
}

// Handler serves what is below Prefix, by GET and HEAD. It needs no token: it has no data.
func Handler() http.Handler {
	files := load()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "the console is only read", http.StatusMethodNotAllowed)
			return
		}
		if r.URL.Path+"/" == Prefix {
			http.Redirect(w, r, Prefix, http.StatusMovedPermanently)
			return
		}
		name, ok := strings.CutPrefix(r.URL.Path, Prefix)
		if ok && name == "" {
			name = "index.html"
		}
		f := files[name]
		if !ok || f == nil {
			http.NotFound(w, r)
			return
		}
		f.serve(w, r)
	})
}

func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache") // asked for again, by its tag
	h.Set("ETag", f.tag)
	h.Set("Content-Type", f.kind)
	if r.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Length", fmt.Sprint(len(f.body)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(f.body)
	}
}

// kinds are the content types of the console's files, which systems define differently.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8",
}

// load reads all embedded files once. A failure is a fault of the program.
func load() map[string]*file {
	files := map[string]*file{}
	err := fs.WalkDir(embedded, "static", func(at string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		body, err := embedded.ReadFile(at)
		if err != nil {
			return err
		}
		kind := kinds[path.Ext(at)]
		if _, _, err := mime.ParseMediaType(kind); err != nil {
			return fmt.Errorf("the type of %s: %w", at, err)
		}
		sum := sha256.Sum256(body)
		name := strings.TrimPrefix(at, "static/")
		files[name] = &file{name, body, kind, `"` + hex.EncodeToString(sum[:12]) + `"`}
		return nil
	})
	if err != nil {
		panic(err)
	}
	return files
}
