// Package strictjson reads JSON documents that people write by hand, such as
// configuration files, into Go structs, and tells every problem with its line
// and column: syntax errors, unknown and duplicate keys, wrong types, values
// outside what the struct's tags allow. The same struct yields the document's
// JSON Schema, so that an editor and this package never disagree.
//
// Tags of a field, besides json:
//
//	doc:"…"        the description
//	default:"…"    the default, for the schema only
//	required:"true"
//	pattern:"…"    a regular expression that a string must match
//	enum:"a,b"     the values that a string may have
//	min:"1"        the least value of a number; the least length of a list
//	max:"64"       the largest value of a number; the most bytes of a string, the most items of a list
//	format:"uri"   for the schema only
//	example:"…"    shown where the pattern does not match
//	secret:"true"  the value must not be shown
//
// The kinds of fields are string, bool, int, int64, slices and structs of these.
// A string type's String method decides what problems show of it.
package strictjson
