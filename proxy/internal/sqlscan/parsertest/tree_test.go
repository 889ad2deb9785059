package parsertest

import (
	"slices"
	"strings"

	pgquery "github.com/pganalyze/pg_query_go/v6"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// effects says by a statement's tree why it may write, in words that are the same
// for all statements of a kind; nothing says that it only reads. It knows nothing
// of how sqlscan decides.
func effects(statement *pgquery.Node, known *known) []string {
	switch n := statement.GetNode().(type) {
	case *pgquery.Node_SelectStmt:
		return inside(n.SelectStmt, known)
	case *pgquery.Node_DeclareCursorStmt:
		return effects(n.DeclareCursorStmt.Query, known)
	case *pgquery.Node_ExplainStmt:
		return ofExplain(n.ExplainStmt, known)
	case *pgquery.Node_CopyStmt:
		if n.CopyStmt.IsFrom || n.CopyStmt.IsProgram || n.CopyStmt.Filename != "" {
			return []string{"COPY that is not to the client"}
		}
		if n.CopyStmt.Query == nil {
			return nil
		}
		return effects(n.CopyStmt.Query, known)
	case *pgquery.Node_TransactionStmt:
		switch kind := n.TransactionStmt.Kind; kind {
		case pgquery.TransactionStmtKind_TRANS_STMT_PREPARE, pgquery.TransactionStmtKind_TRANS_STMT_COMMIT_PREPARED:
			return []string{kind.String()}
		}
		return nil
	// What these do is no change of data, and PostgreSQL allows all of them in a
	// READ ONLY transaction. What a PREPARE holds is judged where it is executed.
	case *pgquery.Node_VariableSetStmt, *pgquery.Node_VariableShowStmt, *pgquery.Node_ConstraintsSetStmt,
		*pgquery.Node_FetchStmt, *pgquery.Node_ClosePortalStmt,
		*pgquery.Node_PrepareStmt, *pgquery.Node_DeallocateStmt, *pgquery.Node_DiscardStmt,
		*pgquery.Node_ListenStmt, *pgquery.Node_UnlistenStmt, *pgquery.Node_LockStmt, *pgquery.Node_LoadStmt,
		*pgquery.Node_CheckPointStmt, *pgquery.Node_VacuumStmt, *pgquery.Node_ReindexStmt, *pgquery.Node_ClusterStmt:
		return nil
	}
	return []string{kindOf(statement)}
}

// ofExplain: the statement runs with ANALYZE only; but the arguments of an EXECUTE
// are evaluated in any case.
func ofExplain(explain *pgquery.ExplainStmt, known *known) []string {
	analyze := false
	for _, option := range explain.Options {
		if def := option.GetDefElem(); def.GetDefname() == "analyze" {
			analyze = isOn(def.GetArg())
		}
	}
	if analyze {
		return effects(explain.Query, known)
	}
	if execute := explain.Query.GetExecuteStmt(); execute != nil {
		return inside(execute, known)
	}
	return nil
}

// isOn reads a boolean option as the server's defGetBoolean does.
func isOn(value *pgquery.Node) bool {
	switch v := value.GetNode().(type) {
	case *pgquery.Node_Integer:
		return v.Integer.Ival != 0
	case *pgquery.Node_Boolean:
		return v.Boolean.Boolval
	case *pgquery.Node_String_:
		return !slices.Contains([]string{"off", "false"}, strings.ToLower(v.String_.Sval))
	}
	return true
}

// kindOf is the name of a statement's node: CreateStmt, InsertStmt and so on.
func kindOf(statement *pgquery.Node) string {
	inner := statement.ProtoReflect()
	field := inner.WhichOneof(inner.Descriptor().Oneofs().Get(0))
	if field == nil {
		return "nothing"
	}
	return string(inner.Get(field).Message().Descriptor().Name())
}

// inside looks at everything that a query holds.
func inside(query proto.Message, known *known) []string {
	var found []string
	add := func(why string) {
		if why != "" && !slices.Contains(found, why) {
			found = append(found, why)
		}
	}
	walk(query.ProtoReflect(), func(node protoreflect.ProtoMessage) {
		switch n := node.(type) {
		case *pgquery.InsertStmt, *pgquery.UpdateStmt, *pgquery.DeleteStmt, *pgquery.MergeStmt:
			add("a WITH that changes data")
		case *pgquery.IntoClause:
			add("SELECT INTO")
		case *pgquery.LockingClause:
			add("rows are locked")
		case *pgquery.FuncCall:
			add(known.function(lastName(n.Funcname)))
		case *pgquery.RangeTableSample:
			add(known.function(lastName(n.Method)))
		case *pgquery.A_Expr:
			add(known.operator(lastName(n.Name)))
		case *pgquery.SubLink:
			add(known.operator(lastName(n.OperName)))
		case *pgquery.SortBy:
			add(known.operator(lastName(n.UseOp)))
		case *pgquery.ColumnRef:
			if len(n.Fields) > 1 {
				add(known.field(lastName(n.Fields)))
			}
		case *pgquery.A_Indirection:
			for _, part := range n.Indirection {
				add(known.field(part.GetString_().GetSval()))
			}
		case *pgquery.RangeVar:
			add(known.relation(n.Relname))
		case *pgquery.TypeName:
			add(known.typeName(lastName(n.Names)))
		}
	})
	return found
}

// walk visits a message of a tree and all that it holds.
func walk(message protoreflect.Message, visit func(protoreflect.ProtoMessage)) {
	visit(message.Interface())
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				walk(value.List().Get(i).Message(), visit)
			}
		default:
			walk(value.Message(), visit)
		}
		return true
	})
}

func lastName(names []*pgquery.Node) string {
	if len(names) == 0 {
		return ""
	}
	return names[len(names)-1].GetString_().GetSval()
}
