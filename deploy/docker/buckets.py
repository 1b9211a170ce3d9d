"""Make the S3 buckets named, unless they are there."""

import os
import sys

import boto3
from botocore.exceptions import ClientError


def make(*names: str) -> None:
    """Raises botocore's errors where the endpoint cannot be reached or refuses."""
    s3 = boto3.client("s3")  # endpoint, region and keys: AWS_ENDPOINT_URL_S3, AWS_DEFAULT_REGION, AWS_ACCESS_KEY_ID ...
    region = os.environ.get("AWS_DEFAULT_REGION", "us-east-1")
    location = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    for name in names:
        try:
            s3.head_bucket(Bucket=name)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
                raise
            s3.create_bucket(Bucket=name, **location)
        print(f"bucket {name} is there")


if __name__ == "__main__":
    make(*sys.argv[1:])
