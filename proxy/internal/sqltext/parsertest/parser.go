// Package parsertest holds sqltext against PostgreSQL's own scanner and grammar,
// which pg_query carries as C code: where statements begin and end, and what is a
// comment. It is a module of its own, so that neither the parser nor the need for a C
// compiler gets into a user's dependency graph. This file is all that isn't a test,
// since tests can't use cgo.
package parsertest

/*
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

// As pg_query.h has them, which a package of another module can't include.
typedef struct {
	char *message;
	char *funcname;
	char *filename;
	int lineno;
	int cursorpos;
	char *context;
} PgQueryError;
typedef struct {
	size_t len;
	char *data;
} PgQueryProtobuf;
typedef struct {
	PgQueryProtobuf pbuf;
	char *stderr_buffer;
	PgQueryError *error;
} PgQueryScanResult;
typedef struct {
	PgQueryProtobuf parse_tree;
	char *stderr_buffer;
	PgQueryError *error;
} PgQueryProtobufParseResult;

extern __thread bool standard_conforming_strings;
extern PgQueryScanResult pg_query_scan(const char *input);
extern void pg_query_free_scan_result(PgQueryScanResult result);
extern PgQueryProtobufParseResult pg_query_parse_protobuf_opts(const char *input, int options);
extern void pg_query_free_protobuf_parse_result(PgQueryProtobufParseResult result);

// scan reads the setting of its own thread, so both happen in one call.
static PgQueryScanResult scan(const char *input, bool conforming) {
	standard_conforming_strings = conforming;
	PgQueryScanResult result = pg_query_scan(input);
	standard_conforming_strings = true;
	return result;
}
*/
import "C"

import (
	"errors"
	"sync"
	"unsafe"

	pgquery "github.com/pganalyze/pg_query_go/v6"
	"google.golang.org/protobuf/proto"
)

// parser allows one caller at a time: pg_query replaces the process's standard error while it works.
var parser sync.Mutex

// Scan returns the tokens of a text without a NUL, comments among them, as the
// scanner of PostgreSQL 17 finds them. escapes says that
// standard_conforming_strings is off. The error is the scanner's own.
func Scan(text string, escapes bool) ([]*pgquery.ScanToken, error) {
	input := C.CString(text)
	defer C.free(unsafe.Pointer(input))
	parser.Lock()
	result := C.scan(input, C.bool(!escapes))
	parser.Unlock()
	defer C.pg_query_free_scan_result(result)
	if result.error != nil {
		return nil, errors.New(C.GoString(result.error.message))
	}
	var scanned pgquery.ScanResult
	if err := proto.Unmarshal(C.GoBytes(unsafe.Pointer(result.pbuf.data), C.int(result.pbuf.len)), &scanned); err != nil {
		return nil, err
	}
	return scanned.Tokens, nil
}

// parseEscapes is PG_QUERY_DISABLE_STANDARD_CONFORMING_STRINGS.
const parseEscapes = 32

// Parse returns the trees of a text's statements, by the grammar of PostgreSQL 17.
// An empty statement has none. The error is the grammar's own.
func Parse(text string, escapes bool) ([]*pgquery.RawStmt, error) {
	input := C.CString(text)
	defer C.free(unsafe.Pointer(input))
	options := C.int(0)
	if escapes {
		options = parseEscapes
	}
	parser.Lock()
	result := C.pg_query_parse_protobuf_opts(input, options)
	parser.Unlock()
	defer C.pg_query_free_protobuf_parse_result(result)
	if result.error != nil {
		return nil, errors.New(C.GoString(result.error.message))
	}
	var parsed pgquery.ParseResult
	if err := proto.Unmarshal(C.GoBytes(unsafe.Pointer(result.parse_tree.data), C.int(result.parse_tree.len)), &parsed); err != nil {
		return nil, err
	}
	return parsed.Stmts, nil
}
