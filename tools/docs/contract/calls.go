package contract

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// Printed is what a command prints as JSON: a value of a type, or an object with constant keys.
type Printed struct {
	Type types.Type
	Keys map[string]types.Type
}

// function is a function of the commands' package.
type function struct {
	decl  *ast.FuncDecl
	calls []*types.Func
	types []*types.TypeName // of which it makes values
}

// commands reads the package of the commands.
type commands struct {
	*checked
	functions map[*types.Func]*function
	printers  map[*types.Func]int // those that print one of their arguments as JSON, with its position
	generic   map[*types.Func]int // those that print a value of one of their type parameters, with its position
}

// printer is the function that writes every value, and the position of the value.
const printer, printerArg = "writeJSON", 1

// Commands returns what each command of a package prints, by its path below the program's name, such as "task show". A command is made by
// a function that returns a *cobra.Command; what it can print is found by following the functions that it refers to.
func (c *Code) Commands(path string) map[string][]Printed {
	k := &commands{checked: c.packages[path], functions: map[*types.Func]*function{}, printers: map[*types.Func]int{}, generic: map[*types.Func]int{}}
	k.index()
	for k.findPrinters() {
	}
	all := map[string][]Printed{}
	for f := range k.functions {
		if f.Name() == "root" && isCommand(f) {
			k.walk(f, "", all)
		}
	}
	return all
}

// index collects the functions.
func (k *commands) index() {
	for _, file := range k.files {
		for _, d := range file.Decls {
			decl, ok := d.(*ast.FuncDecl)
			if !ok || decl.Body == nil {
				continue
			}
			f := &function{decl: decl}
			ast.Inspect(decl.Body, func(n ast.Node) bool {
				id, ok := n.(*ast.Ident)
				if !ok {
					return true
				}
				switch o := k.info.Uses[id].(type) {
				case *types.Func:
					if o.Pkg() == k.types {
						f.calls = append(f.calls, o.Origin())
					}
				case *types.TypeName:
					if o.Pkg() == k.types && o.Name() != "app" {
						f.types = append(f.types, o)
					}
				}
				return true
			})
			k.functions[k.info.Defs[decl.Name].(*types.Func)] = f
		}
	}
}

// findPrinters adds the functions that pass one of their arguments to a printer, and reports whether there are new ones.
func (k *commands) findPrinters() (found bool) {
	for f, in := range k.functions {
		_, known := k.printers[f]
		if _, generic := k.generic[f]; known || generic {
			continue
		}
		if f.Name() == printer {
			k.printers[f], found = printerArg, true
			continue
		}
		params := f.Signature().Params()
		k.prints(in, func(arg ast.Expr, t types.Type) {
			if p, ok := t.(*types.TypeParam); ok && f.Signature().TypeParams().Len() > p.Index() && f.Signature().TypeParams().At(p.Index()) == p {
				k.generic[f], found = p.Index(), true
			}
			id, ok := ast.Unparen(arg).(*ast.Ident)
			for i := range params.Len() {
				if ok && k.info.Uses[id] == params.At(i) && open(params.At(i).Type()) {
					k.printers[f], found = i, true
				}
			}
		})
	}
	return found
}

// open reports whether a type stands for others.
func open(t types.Type) bool {
	if s, ok := t.(*types.Slice); ok {
		t = s.Elem()
	}
	if _, ok := t.(*types.TypeParam); ok {
		return true
	}
	return types.IsInterface(t)
}

// prints calls do with the type of each value that a function lets a printer print, and with its expression where that is an argument.
func (k *commands) prints(f *function, do func(ast.Expr, types.Type)) {
	ast.Inspect(f.decl.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		called := k.called(call)
		if i, ok := k.printers[called]; ok && i < len(call.Args) {
			do(call.Args[i], k.info.Types[call.Args[i]].Type)
		}
		if i, ok := k.generic[called]; ok {
			do(call.Fun, k.info.Instances[k.identifier(call)].TypeArgs.At(i))
		}
		return true
	})
}

// called returns the function of a call, nil if it is not known.
func (k *commands) called(call *ast.CallExpr) *types.Func {
	id := k.identifier(call)
	if id == nil {
		return nil
	}
	if f, ok := k.info.Uses[id].(*types.Func); ok {
		return f.Origin()
	}
	return nil
}

// identifier returns the name by which a function is called, nil where it has none.
func (k *commands) identifier(call *ast.CallExpr) *ast.Ident {
	fun := ast.Unparen(call.Fun)
	if index, ok := fun.(*ast.IndexExpr); ok {
		fun = index.X
	}
	switch fun := fun.(type) {
	case *ast.Ident:
		return fun
	case *ast.SelectorExpr:
		return fun.Sel
	}
	return nil
}

// isCommand reports whether a function makes one command.
func isCommand(f *types.Func) bool {
	r := f.Signature().Results()
	return r.Len() == 1 && r.At(0).Type().String() == "*github.com/spf13/cobra.Command"
}

// walk adds what a command and those below it print.
func (k *commands) walk(f *types.Func, parent string, all map[string][]Printed) {
	in := k.functions[f]
	path := parent
	if f.Name() != "root" {
		path = strings.TrimSpace(parent + " " + k.name(in))
		k.reach(path, []*types.Func{f}, all)
		if k.unnamed(in, path, all) {
			delete(all, path) // it only has subcommands
		}
	}
	for _, below := range in.calls {
		if below != f && k.isNamed(below) {
			k.walk(below, path, all)
		}
	}
}

// isNamed reports whether a function makes a command with a name of its own.
func (k *commands) isNamed(f *types.Func) bool {
	return isCommand(f) && k.functions[f] != nil && k.name(k.functions[f]) != ""
}

// reach adds what the functions print to which the first ones lead, without those of other commands.
func (k *commands) reach(path string, queue []*types.Func, all map[string][]Printed) {
	reached := map[*types.Func]bool{}
	for first := len(queue); len(queue) > 0; queue, first = queue[1:], first-1 {
		f := queue[0]
		in := k.functions[f]
		if in == nil || reached[f] || first <= 0 && k.isNamed(f) {
			continue
		}
		reached[f] = true
		k.prints(in, func(arg ast.Expr, t types.Type) {
			if p, ok := k.printed(in, arg, t); ok {
				all[path] = append(all[path], p)
			}
		})
		queue = append(queue, k.next(in)...)
	}
}

// unnamed adds what the commands print that a function makes with the help of another one, which gets their names, and reports whether
// there are some.
func (k *commands) unnamed(in *function, path string, all map[string][]Printed) (found bool) {
	own := true // the first name is the function's own
	ast.Inspect(in.decl.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 || k.text(call.Args[0]) == "" {
			return true
		}
		if f := k.called(call); f == nil || !isCommand(f) {
			return true
		}
		if own {
			own = false
			return true
		}
		name, _, _ := strings.Cut(k.text(call.Args[0]), " ")
		var run []*types.Func
		for _, arg := range call.Args {
			if selector, ok := arg.(*ast.SelectorExpr); ok {
				if f, ok := k.info.Uses[selector.Sel].(*types.Func); ok {
					run = append(run, f.Origin())
				}
			}
		}
		k.reach(path+" "+name, run, all)
		found = true
		return true
	})
	return found
}

// next returns the functions that a function refers to, with the methods of the types of which it makes values.
func (k *commands) next(in *function) []*types.Func {
	all := slices.Clone(in.calls)
	for _, t := range in.types {
		if named, ok := t.Type().(*types.Named); ok {
			for m := range named.Methods() {
				all = append(all, m)
			}
		}
	}
	return all
}

// name returns the first word of a command's use, "" for a function that is no command of its own.
func (k *commands) name(in *function) (name string) {
	ast.Inspect(in.decl.Body, func(n ast.Node) bool {
		if name != "" {
			return false
		}
		switch n := n.(type) {
		case *ast.CallExpr:
			if f := k.called(n); f != nil && isCommand(f) {
				for _, arg := range n.Args {
					if use := k.text(arg); use != "" {
						name, _, _ = strings.Cut(use, " ")
						return false
					}
				}
			}
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Use" {
				name, _, _ = strings.Cut(k.text(n.Value), " ")
			}
		}
		return true
	})
	return name
}

// text returns the value of a constant text.
func (k *commands) text(e ast.Expr) string {
	if v := k.info.Types[e].Value; v != nil && v.Kind() == constant.String {
		return constant.StringVal(v)
	}
	return ""
}

// printed returns what an expression prints; ok is false for the argument of a printer, which its callers know.
func (k *commands) printed(in *function, e ast.Expr, t types.Type) (Printed, bool) {
	e = ast.Unparen(e)
	if _, generic := t.(*types.TypeParam); generic {
		return Printed{}, false
	}
	if id, is := e.(*ast.Ident); is {
		f := k.info.Defs[in.decl.Name].(*types.Func)
		if i, prints := k.printers[f]; prints && k.info.Uses[id] == f.Signature().Params().At(i) {
			return Printed{}, false
		}
	}
	p := Printed{Type: t}
	if literal, is := e.(*ast.CompositeLit); is {
		if _, is := p.Type.Underlying().(*types.Map); is {
			p.Keys = map[string]types.Type{}
			for _, el := range literal.Elts {
				pair := el.(*ast.KeyValueExpr)
				p.Keys[k.text(pair.Key)] = k.info.Types[pair.Value].Type
			}
		}
	}
	return p, true
}

// ExitCodes adds the values of a package's constants whose names begin with a word.
func (c *Code) ExitCodes(path, word string, f Facts) {
	scope := c.packages[path].types.Scope()
	for _, name := range scope.Names() {
		if k, ok := scope.Lookup(name).(*types.Const); ok && strings.HasPrefix(name, word) && k.Val().Kind() == constant.Int {
			f.Add("exit code %s: %s", k.Val(), strings.ToLower(strings.TrimPrefix(name, word)))
		}
	}
}

// FailureCodes adds the constant texts that a package gives to a member of a struct, with the exit code beside it.
func (c *Code) FailureCodes(path, of, kind, exit string, f Facts) {
	p := c.packages[path]
	for _, file := range p.files {
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			if t, ok := p.info.Types[literal].Type.(*types.Named); !ok || t.Obj().Name() != of {
				return true
			}
			values := map[string]constant.Value{}
			for _, el := range literal.Elts {
				if pair, ok := el.(*ast.KeyValueExpr); ok {
					values[pair.Key.(*ast.Ident).Name] = p.info.Types[pair.Value].Value
				}
			}
			if values[kind] != nil && values[exit] != nil {
				f.Add("error code %s: exit code %s", values[kind].ExactString(), values[exit])
			}
			return true
		})
	}
}

// Tools adds the tools of a package: literals of the generic type Tool, whose arguments are the types of a tool's arguments and results.
func (c *Code) Tools(path string, f Facts) {
	p := c.packages[path]
	in, out := &Shapes{Facts: f, Prefix: "in ", Tag: "json", Input: true}, &Shapes{Facts: f, Prefix: "out ", Tag: "json"}
	for _, file := range p.files {
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			t, ok := types.Unalias(p.info.Types[literal].Type).(*types.Named)
			if !ok || t.Obj().Name() != "Tool" || t.TypeArgs().Len() != 2 {
				return true
			}
			name := ""
			for _, el := range literal.Elts {
				if pair, ok := el.(*ast.KeyValueExpr); ok && pair.Key.(*ast.Ident).Name == "Name" {
					if v := p.info.Types[pair.Value].Value; v != nil {
						name = constant.StringVal(v)
					}
				}
			}
			if _, open := t.TypeArgs().At(0).(*types.TypeParam); !open && token.IsIdentifier(name) {
				f.Add("tool %s takes %s", name, in.Of(t.TypeArgs().At(0)))
				f.Add("tool %s returns %s", name, out.Of(t.TypeArgs().At(1)))
			}
			return true
		})
	}
}

// Root adds the shape of one type of a package.
func (c *Code) Root(path, name string, s *Shapes) {
	s.Of(c.packages[path].types.Scope().Lookup(name).Type())
}
