"""TVM's own tests as a suite: every module that they make, compiled here and by TVM, and compared.

    git clone --depth 1 https://github.com/apache/tvm
    python -m tests.tvm_suite tvm/tests/python/relax --out tvm-suite

None of those tests is part of this project. Their modules are good for what nobody here would think of: modules of all
stages of TVM's pipelines, types that leave out dtypes or ranks, functions in functions, calls of what nobody
registered.
"""

#: The environment variable that says where `harvest` writes modules.
FOLDER = "TVM_SUITE_FOLDER"
