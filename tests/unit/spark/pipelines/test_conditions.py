"""Errors of Spark in the words of the pipelines."""

import pytest

from querator.spark.pipelines.conditions import in_words

FUNCTIONS = ("upper", "lower", "to_date", "to_json")


@pytest.mark.parametrize(
    ("condition", "parameters", "words"),
    [
        (
            "UNRESOLVED_COLUMN.WITH_SUGGESTION",
            {"objectName": "`custmer`", "proposal": "`customer`, `id`, `a`.`b`"},
            "there is no column custmer; did you mean customer, id or a.b?",
        ),
        (
            "UNRESOLVED_COLUMN.WITH_SUGGESTION",
            {"objectName": "`Last, Frst`", "proposal": "`Last, First`, `id`"},
            "there is no column Last, Frst; did you mean Last, First or id?",
        ),
        # As another version of Spark might have it.
        ("UNRESOLVED_COLUMN.WITHOUT_SUGGESTION", {"objectName": "a, b"}, ""),
        (
            "UNRESOLVED_COLUMN.WITHOUT_SUGGESTION",
            {"objectName": "`a`.`b`"},
            "there is no column a.b",
        ),
        (
            "FIELD_NOT_FOUND",
            {"fieldName": "`x`", "fields": "`key`, `value`"},
            "there is no field x; there are key or value",
        ),
        ("UNRESOLVED_ROUTINE", {"routineName": "`uper`"},
         "there is no function uper; did you mean upper?"),
        ("UNRESOLVED_ROUTINE", {"routineName": "`zzz`"}, "there is no function zzz"),
        ("PARSE_SYNTAX_ERROR", {"error": "end of input", "hint": ": missing ')'"},
         "this is not SQL: syntax error at end of input: missing ')'"),
        ("UNSUPPORTED_DATATYPE", {"typeName": '"LONNG"'},
         "there is no type LONNG; did you mean long?"),
        ("WRONG_NUM_ARGS.WITHOUT_SUGGESTION",
         {"functionName": "`upper`", "expectedNum": "1", "actualNum": "0"},
         "function upper has the wrong number of arguments: 0; it takes 1"),
        ("DATATYPE_MISMATCH.FILTER_NOT_BOOLEAN", {"filter": '"id"', "type": '"STRING"'},
         "id is string: it must be true or false, as a comparison is"),
        ("CAST_INVALID_INPUT", {"expression": "'ann'", "targetType": '"INT"'},
         "the value 'ann' is no int; try_cast(… AS int) makes null of such a value"),
        ("DATATYPE_MISMATCH.CAST_WITHOUT_SUGGESTION",
         {"srcType": '"ARRAY<INT>"', "targetType": '"INT"', "sqlExpr": '"x"'},
         "array<int> cannot become int"),
        ("MALFORMED_CSV_RECORD", {"badRecord": "2,bob,3\n"},
         "a record does not have the columns of the others: 2,bob,3"),
        ("MALFORMED_CSV_RECORD", {"badRecord": "\x01\ufffd"},
         "a record does not have the columns of the others: bytes that are not text"),
        ("USER_RAISED_EXCEPTION", {"errorMessage": "x" * 300}, f"raise_error: {'x' * 200}…"),
        ("UNABLE_TO_INFER_SCHEMA", {"format": "JSON"}, "there are no JSON files"),
        ("INVALID_CONF_VALUE.TYPE_MISMATCH",
         {"confName": '"spark.sql.shuffle.partitions"', "confValue": "abc", "confType": "int"},
         "setting spark.sql.shuffle.partitions is 'abc': it must be int"),
        ("UNSUPPORTED_DATATYPE", {}, ""),
        ("NO_SUCH_CONDITION", {"a": "b"}, ""),
    ],
)  # fmt: skip
def test_a_condition_has_words(condition: str, parameters: dict[str, str], words: str) -> None:
    assert in_words(condition, parameters, lambda: FUNCTIONS) == words
